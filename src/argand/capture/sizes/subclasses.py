"""Tensor subclasses without `__torch_dispatch__`: in the graph plain tensors, to the program instances of their class.

The stand-in of such a tensor is *dressed*: an object of the program's class, of which only the class and the Python
attributes count, over a plain stand-in that the graph knows. What torch functions do with it is decided as torch
decides: by the class's `__torch_function__`, interpreted where it is the program's own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from argand import errors
from argand.capture.facts.classify import why_not
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import Source
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicSize
from argand.capture.facts.values.tensor_info import Dressed
from argand.capture.sizes import async_collective_tensors
from argand.graph.dtensors import Edge
from argand.graph.nested_tensors import Jagged, among, jagged_class
from argand.graph.trees import mapped, rebuilt
from argand.graph.wrappers import PartEdge

_Tensor = torch.Tensor
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes that graphs know."""


# ---------------------------------------------------------------------- which classes


def refused(name: str, value: torch.Tensor) -> errors.GraphBreak:
    """The break for a tensor of such a class that comes from outside."""
    why = (
        why_not(type(value))
        or f"this {type(value).__name__} is sparse, quantized or nested, or says another shape than its own"
    )
    ending = errors.graph_break(
        kind="input that a graph cannot hold",
        context=f"{name}: {type(value).__name__}",
        explanation=f"{name} is a {type(value).__name__}, which cannot be a graph input: {why}.",
        hints=(
            "Pass a plain torch.Tensor, or use this value outside the compiled function.",
            "Classes that only define __torch_function__ are captured, and those that say what they wrap "
            "(__tensor_flatten__).",
        ),
    )
    ending.sets_up = type(value) in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
    return ending


def changed_in_place(func: Function) -> errors.GraphBreak:
    """The break for a change of size or strides of a subclass that came from outside: the graph has an alias of it."""
    return errors.graph_break(
        kind="size of a subclass changed in place",
        context=getattr(func, "__name__", str(func)),
        explanation=f"{func.__name__} changes the size or strides of a tensor of a subclass that comes from outside.",
    )


# ---------------------------------------------------------------------- dressing


def dress(builder: GraphBuilder, plain: torch.Tensor, cls: type) -> torch.Tensor:
    """The stand-in that the program sees of a tensor of the class `cls`; `plain` is nobody else's."""
    with torch._C.DisableTorchFunction():
        dressed: torch.Tensor = torch.empty(0, device="meta").as_subclass(cls)
    builder.dressed[id(dressed)] = Dressed(dressed, plain)
    builder.wearers[id(plain)] = dressed
    return dressed


def check_shape(source: Source, real: torch.Tensor) -> None:
    """End the graph where the class of a tensor says another shape than that of the tensor."""
    with torch._C.DisableTorchFunction():
        if tuple(real.shape) != tuple(_Tensor.size(real)):
            raise refused(source.friendly(), real)


def from_outside(state: CaptureState, plain: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The dressed stand-in of a graph input."""
    state.guards.add(None, "global_state", ((torch._C._is_torch_function_enabled, True),), label="GLOBAL_STATE")
    state.interpreter.note_class(type(real))
    return dress(state.graph, plain, type(real))


def shown(builder: GraphBuilder, plain: torch.Tensor) -> torch.Tensor:
    """What the program sees of a plain stand-in."""
    return builder.wearers.get(id(plain), plain)


def plain_of(builder: GraphBuilder, value: object) -> object:
    """The plain stand-in of a dressed one of which torch functions ask no code of the program; else `value`."""
    worn = builder.dressed.get(id(value))
    if worn is None or not (builder.undressing or is_default(type(value))):
        return value
    return worn.plain


def is_default(cls: Any) -> bool:
    """Whether the class has the `__torch_function__` of torch.Tensor, or none that is asked."""
    own, inherited = cls.__torch_function__, _Tensor.__torch_function__
    off = own is torch._C._disabled_torch_function_impl
    return off or getattr(own, "__func__", None) is inherited.__func__


def convert(state: CaptureState, value: object, cls: type, fresh: bool = False) -> object:
    """`value.as_subclass(cls)`.

    Arguments:
        value: a stand-in, dressed or not.
        fresh: nobody else has it, so that no new tensor is needed.

    Raises:
        GraphBreak: tensors of this class cannot be in a graph.
    """
    builder = state.graph
    worn = builder.dressed.get(id(value))
    plain = value if worn is None else worn.plain
    if not fresh:
        with torch._C.DisableTorchFunction():
            plain = builder.record(torch.ops.aten.alias.default, (plain,), {})
    if cls is _Tensor:
        return plain
    why = why_not(cls) if cls is not torch.nn.Parameter else "as_subclass of Parameter makes new state"
    if why:
        raise errors.graph_break(
            kind="tensor of a class that graphs cannot hold",
            context=cls.__name__,
            explanation=f"A tensor becomes a {cls.__name__}: {why}.",
        )
    state.interpreter.note_class(cls)
    return dress(builder, plain, cls)


def strip(builder: GraphBuilder, value: Any, dressed: dict[int, torch.Tensor]) -> object:
    """`value` with plain stand-ins for dressed ones; which ones is noted in `dressed`, by id of the plain one."""
    if isinstance(value, _Tensor):
        worn = builder.dressed.get(id(value))
        if worn is None:
            return value
        dressed[id(worn.plain)] = value
        return worn.plain
    cls = type(value)
    if cls is tuple or cls is list:
        items = [strip(builder, item, dressed) for item in value]
        return cls(items) if any(a is not b for a, b in zip(items, value)) else value
    if isinstance(value, tuple) and hasattr(cls, "_make"):
        return cls._make([strip(builder, item, dressed) for item in value])
    return rebuilt(value, lambda item: strip(builder, item, dressed))


def call(builder: GraphBuilder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A torch function whose subclass arguments count as plain tensors: its results are plain, its arguments stay."""
    if not builder.dressed:
        return builder.call(func, args, kwargs)
    dressed: dict[int, torch.Tensor] = {}
    args = tuple([strip(builder, arg, dressed) for arg in args])
    kwargs = {key: strip(builder, value, dressed) for key, value in kwargs.items()}
    result = mapped(builder.call(func, args, kwargs), lambda leaf: dressed.get(id(leaf), leaf))
    return async_collective_tensors.shown(builder, func, args, kwargs, result, dressed)


# ---------------------------------------------------------------------- the default of the protocol


def default(state: CaptureState, cls: type, func: Function, types: Any, args: Args, kwargs: Kwargs) -> object:
    """What `torch.Tensor.__torch_function__` does for the class `cls`: compute on plain tensors, results are `cls`.

    The trace mode is active.
    """
    if not all(issubclass(cls, other) for other in types):
        return NotImplemented
    builder = state.graph
    before = len(builder.tensors)
    result = disabled(state, func, args, kwargs)
    if cls is _Tensor or func in torch.overrides.get_default_nowrap_functions():
        return result
    new = set(itertools.islice(reversed(builder.tensors), len(builder.tensors) - before))
    return _converted(state, result, cls, new)


def disabled(state: CaptureState, func: Function, args: Args, kwargs: Kwargs) -> object:
    """The call with every class's `__torch_function__` switched off."""
    undressing = state.graph.undressing
    undressing.append(state.interpreter.number)
    try:
        return state.interpreter.call(func, args, kwargs)
    finally:
        undressing.pop()


class _Heard(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Notes what torch says is called."""

    func: Any = None

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        self.func = func
        return func(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=256)
def announced(func: Function) -> object:
    """What torch tells `__torch_function__` that an operator's method is: of `Tensor.__mul__`, Tensor.mul."""
    if not getattr(func, "__name__", "").startswith("__"):
        return func
    with _Heard() as heard:
        try:
            func(torch.ones((), dtype=torch.int64, device="meta"), 2)
        except (TypeError, RuntimeError):
            return func
    return heard.func or func


def with_symbols(state: CaptureState, mode: Any, func: object, args: Args, kwargs: Kwargs) -> object:
    """A call with symbolic numbers, which torch's own parser cannot look at; `mode`, the trace mode, is off."""
    builder = state.graph
    if builder.nested and among(args, kwargs):  # of whose sizes none varies that a program can have
        return mode.asked(announced(func), (jagged_class(),), fixed(tuple(args)), fixed(dict(kwargs)))
    dressed: dict[int, torch.Tensor] = {}
    strip(builder, (*args, *kwargs.values()), dressed)
    owners = [] if builder.undressing else torch.overrides._get_overloaded_args(tuple(dressed.values()))
    if not owners and not builder.entered:
        return call(builder, func, args, kwargs)
    return mode.asked(announced(func), tuple([type(owner) for owner in owners]), args, kwargs)


def fixed(value: Jagged) -> Jagged:
    """A value of a call with plain numbers for symbolic ones, which are constants from now on."""
    cls = type(value)
    if cls in SYMBOLIC:
        return value.number()
    return torch.Size([fixed(item) for item in value]) if cls is SymbolicSize else rebuilt(value, fixed)


def _converted(state: CaptureState, result: Any, cls: type, new: set[int]) -> object:
    if isinstance(result, _Tensor):
        if is_a(result, cls):
            return result
        fresh = id(result) in new and state.graph.tensors[id(result)].source is None
        return convert(state, result, cls, fresh)
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        items = [_converted(state, item, cls, new) for item in result]
        return result if all(a is b for a, b in zip(items, result)) else type(result)(items)
    return result


def still_off(undressing: list[int]) -> errors.GraphBreak:
    """The break for a graph that ends where torch functions of subclasses are switched off: it ends before that."""
    ending = errors.graph_break(
        kind="graph ends where torch functions are disabled", context="DisableTorchFunctionSubclass"
    )
    ending.sequence = undressing[0]
    return ending


# ---------------------------------------------------------------------- at run time


def places(inputs: Sequence[Any], graph: fx.GraphModule) -> list[tuple[int, Edge | PartEdge | None]]:
    """Which inputs of a graph are subclasses; with what a DTensor shares with the graph."""
    at = [i for i, value in enumerate(inputs) if is_a(value, _Tensor) and type(value) not in PLAIN]
    nodes = list(graph.graph.nodes) if at else []
    edges = [node.meta.get("edge") for node in nodes if node.op == "placeholder"]
    records = any(node.target is torch._C._set_grad_enabled for node in nodes)
    for edge in edges:
        if edge is not None:
            edge.records = records
    return [(i, edges[i]) for i in at]
