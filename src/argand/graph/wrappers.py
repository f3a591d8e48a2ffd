"""Tensors that wrap others: classes with `__torch_dispatch__` that say what they are made of, and are made of it again
(`__tensor_flatten__`, `__tensor_unflatten__`: quantized and scaled weights, pairs of tensors).

A graph takes and gives the parts. In between, operations are called on wrappers that the graph puts together, and
while it is traced the class's `__torch_dispatch__` says what they do with the parts. Where gradients are recorded, the
parts go in and out by functions of autograd, on both sides of the graph's edge (`entered` and `taken`, `left` and
`wrapped`): the gradient of a wrapper is what operations on it give, a wrapper with as many parts or a plain tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from argand.errors import AutogradError
from argand.graph.nested_tensors import is_jagged
from argand.graph.shared_gradients import own
from argand.graph.version_counters import counted_as, share_counters
from argand.quick_dataclasses import dataclass

KNOWN: set[type] = set()
"""Classes of which a graph was captured: tracing leaves their operations to them."""


def is_wrapper(cls: type) -> bool:
    """Whether tensors of a class can be taken apart, and torch functions of them are decided by dispatch, or by code
    of the class itself before."""
    if cls in KNOWN:
        return True
    if cls is torch.Tensor or cls is torch.nn.Parameter or not issubclass(cls, torch.Tensor):
        return False
    own: Any = cls
    return (
        own.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
        and (own.__torch_function__ is torch._C._disabled_torch_function_impl or asks_class(cls))
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
        and (not cls.__module__.startswith("torch.") or cls.__module__.startswith("torch.testing."))
    )


def asks_class(cls: Any) -> bool:
    """Whether a wrapper's class has Python code of its own for torch functions, which capture interprets."""
    code = getattr(cls.__torch_function__, "__func__", None)
    return isinstance(code, FunctionType) and code is not torch.Tensor.__torch_function__.__func__


@functools.cache
def past_class(func: Callable[..., object]) -> Callable[..., object]:
    """The operation of a graph that is a call of a torch function without the code that a class has for it."""

    def called(*args: object, **kwargs: object) -> object:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    called.__name__ = getattr(func, "__name__", "called")
    return called


def holds_parts(cls: type) -> bool:
    """Whether the attributes of tensors of a class are what these are made of."""
    return cls in KNOWN or is_jagged(cls)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a wrapper is besides its parts.

    Arguments:
        cls: its class.
        names: of the attributes that hold the parts.
        context: what `__tensor_flatten__` gives besides these.
        size, stride: of the whole.
    """

    cls: Any
    names: tuple[str, ...]
    context: object
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def whole(self, *parts: torch.Tensor) -> torch.Tensor:
        """The wrapper of these parts.

        Raises:
            AutogradError: its class, which inherits how, makes one of another class.
        """
        size, stride = torch.Size(self.size), self.stride
        wrapper: torch.Tensor = self.cls.__tensor_unflatten__(dict(zip(self.names, parts)), self.context, size, stride)
        if type(wrapper) is not self.cls:
            raise AutogradError(f"the __tensor_unflatten__ of {self.cls.__name__} makes a {type(wrapper).__name__}")
        return wrapper


def layout_of(tensor: torch.Tensor) -> Layout:
    """What a wrapper is besides its parts."""
    with torch._C.DisableTorchFunction():
        names, context = tensor.__tensor_flatten__()
        return Layout(type(tensor), tuple(names), context, tuple(tensor.shape), tensor.stride())


def parts_of(tensor: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """The tensors that a wrapper is made of."""
    return [getattr(tensor, name) for name in layout.names]


def part(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The operation of a graph that takes a part of a wrapper."""

    def part_of_wrapper(wrapper: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = getattr(wrapper, name)
        return inner

    return part_of_wrapper


def kinds(parts: Sequence[torch.Tensor]) -> list[tuple[object, ...]]:
    """What guards compare of parts that are no inputs of their own."""
    return [(type(p), p.shape, p.stride(), p.dtype, p.device, p.requires_grad, p.is_conj(), p.is_neg()) for p in parts]


def laid_out_with(layout: Layout, like: list[tuple[object, ...]], leaf: bool, tensor: torch.Tensor) -> bool:
    """Whether a wrapper is like another one, a leaf or not, and its parts are like those."""
    with torch._C.DisableTorchFunction():  # guards ask nothing of the program's class
        return laid_out(layout, tensor) and tensor.is_leaf is leaf and kinds(parts_of(tensor, layout)) == like


def laid_out(layout: Layout, tensor: torch.Tensor) -> bool:
    """Whether a wrapper of the same class, type and size is like another one; its parts are looked at elsewhere."""
    with torch._C.DisableTorchFunction():
        names, context = tensor.__tensor_flatten__()
        return tuple(names) == layout.names and bool(context == layout.context)


# ---------------------------------------------------------------------- gradients


@dataclass(slots=True, eq=False)
class Entry:
    """A wrapper from outside, in a graph of which gradients are recorded.

    Arguments:
        layout: of it; if it requires grad, its parts are as large as it, and of its dtype.
        gradient: what its gradient is besides parts; None for a plain tensor.
        known: whether that is known: the graph's backward was traced, or has run.
        records: the graph may turn gradients on where it is called without.
    """

    layout: Layout
    gradient: Layout | None = None
    known: bool = False
    records: bool = False

    def apart(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """A gradient, as gradients of the parts."""
        self.known, self.gradient = True, None
        parts = [gradient]
        if type(gradient) in KNOWN:
            self.gradient = layout_of(gradient)
            parts = parts_of(gradient, self.gradient)
        missing = len(self.layout.names) - len(parts)
        if missing < 0:
            raise RuntimeError(f"argand: a gradient of a {self.layout.cls.__name__} has more parts than it has")
        return [*parts, *([None] * missing)]

    def together(self, parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The gradient of which these are the parts."""
        given = parts[: 1 if self.gradient is None else len(self.gradient.names)]
        tensors = [part for part in given if part is not None]
        if not self.known or len(tensors) < len(given):
            raise RuntimeError(f"argand: it is not known what a gradient of a {self.layout.cls.__name__} is made of")
        return tensors[0] if self.gradient is None else self.gradient.whole(*tensors)

    def taken(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """What a graph gets for the wrapper. The program's class is not asked: it was when the graph was captured."""
        with torch._C.DisableTorchFunctionSubclass():
            if not tensor.requires_grad:
                return _detached(tensor, parts_of(tensor, self.layout))
            if not (self.records or torch.is_grad_enabled()):
                return [part.detach().requires_grad_() for part in parts_of(tensor, self.layout)]
            with torch.enable_grad():
                parts: Sequence[torch.Tensor] = _Taken.apply(tensor, self)
            return parts

    def entered(self, *parts: torch.Tensor) -> torch.Tensor:
        """The operation of a graph that puts the wrapper together."""
        return _whole(_Entered, self, self.layout, parts)


@dataclass(slots=True, eq=False)
class PartEdge:
    """An input of a graph that is a part of a wrapper: `number` says which."""

    entry: Entry
    number: int

    @property
    def records(self) -> bool:
        """As `Entry.records`."""
        return self.entry.records

    @records.setter
    def records(self, value: bool) -> None:
        self.entry.records = value


def _detached(counted: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same memory as `parts`, with the version counter of `counted`."""
    tensors = [part.detach() for part in parts]
    share_counters([counted] * len(tensors), tensors)
    return tensors


class _Taken(torch.autograd.Function):
    """wrapper -> parts, around the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, entry: Entry) -> tuple[torch.Tensor, ...]:
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        return tuple(_detached(tensor, parts_of(tensor, entry.layout)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return None if all(grad is None for grad in grads) else ctx.entry.together(own(grads)), None


class _Entered(torch.autograd.Function):
    """parts -> wrapper, inside the graph."""

    @staticmethod
    def forward(ctx: Any, entry: Entry, *parts: torch.Tensor) -> torch.Tensor:
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        return counted_as(parts[0], entry.layout.whole(*_detached(parts[0], parts)))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        entry = ctx.entry
        return None, *([None] * len(entry.layout.names) if grad is None else entry.apart(grad))


class _Left(torch.autograd.Function):
    """wrapper -> parts, inside the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.layout = layout_of(tensor)
        parts = parts_of(tensor, ctx.layout)
        ctx.kinds = [(tuple(part.shape), part.dtype, part.device) for part in parts]
        ctx.set_materialize_grads(False)
        return tuple(_detached(tensor, parts))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if all(grad is None for grad in grads):
            return None
        every = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.kinds)
        ]
        return ctx.layout.whole(*every)


class _Wrapped(torch.autograd.Function):
    """parts -> wrapper, around the graph."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *parts: torch.Tensor) -> torch.Tensor:
        ctx.layout = layout
        ctx.differentiable = [part.is_floating_point() or part.is_complex() for part in parts]
        ctx.set_materialize_grads(False)
        return counted_as(parts[0], layout.whole(*_detached(parts[0], parts)))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        layout = ctx.layout
        if grad is None:
            return None, *([None] * len(layout.names))
        if type(grad) is not layout.cls or not laid_out(layout, grad):
            raise RuntimeError(
                f"argand: a {layout.cls.__name__} that a compiled graph gave gets a gradient of another kind; run its "
                "backward inside of the compiled function, or its forward outside"
            )
        parts = parts_of(grad, layout)
        return None, *[part if can else None for part, can in zip(parts, ctx.differentiable)]


def left(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operation of a graph that takes apart a result."""
    if not tensor.requires_grad:
        return tuple(_detached(tensor, parts_of(tensor, layout_of(tensor))))
    with torch.enable_grad():
        parts: tuple[torch.Tensor, ...] = _Left.apply(tensor)
    return parts


def wrapped(layout: Layout, *parts: torch.Tensor) -> torch.Tensor:
    """What the program gets for the parts that a graph gave."""
    return _whole(_Wrapped, layout, layout, parts)


def _whole(function: Any, given: object, layout: Layout, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The wrapper of these parts, by an autograd function where one of them requires a gradient."""
    if not any(part.requires_grad for part in parts):
        return counted_as(parts[0], layout.whole(*parts))
    with torch.enable_grad():
        wrapper: torch.Tensor = function.apply(given, *parts)
    return wrapper
