"""The tracer: a dispatch mode that records a functional ATen graph while torch code runs on tensors without data."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from argand.autograd.ops import collectives, foreach, masked_writes, mutation, special, views
from argand.autograd.recording.recorder import Handler, Recorder
from argand.autograd.recording.values import TraceTensor
from argand.graph import compat, time_limit, wrappers
from argand.graph.dtensors import (
    dispatches_itself,
    draws_together,
    fakes,
    forget_masks,
    is_sharded,
    part_of_draw,
    tracing_draws,
)
from argand.graph.operators.random_ops import encoded_call, random_ops

aten = torch.ops.aten

_DTENSOR = "torch.distributed.tensor"
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Types of the tensors that torch makes of numbers."""


@functools.cache
def _begins_with_tensor(func: Any) -> bool:
    """Whether an op's first argument is a tensor."""
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.arguments) and str(schema.arguments[0].type) == "Tensor"


def _named_part(args: tuple[Any, ...]) -> Callable[[object], object]:
    """What stands for an argument of a call in its text."""
    tensors = [arg for arg in args if isinstance(arg, TraceTensor)]

    def part(value: object) -> object:
        if isinstance(value, TraceTensor):
            return {"tensor": [value is one for one in tensors].index(True)}
        return {"dtype": str(value).removeprefix("torch.")}

    return part


class Tracer(Recorder):
    """Records every ATen call made while it is active."""

    _masks = False  # an operation was seen whose rows DTensor may mask
    # Of what a mesh draws, while an operation on a DTensor is traced that draws it.
    _part: tuple[int, int] | None = None

    def close(self) -> None:
        """As `Recorder.close`."""
        super().close()
        if self._masks:
            forget_masks(lambda mask: isinstance(mask, TraceTensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _DTENSOR in sys.modules:
            if any(dispatches_itself(cls) for cls in types):
                self._masks = self._masks or "embedding" in func._schema.name or "gather" in func._schema.name
                if (
                    self._part is None
                    and compat.is_random(func)
                    and is_sharded(type(args[0]))
                    and draws_together(func, args[0])
                ):
                    return self._drawn_together(func, args, kwargs or {})
                return NotImplemented
            if fakes():
                return func(*args, **(kwargs or {}))
        if any(cls is not TraceTensor and wrappers.is_wrapper(cls) for cls in types):
            return NotImplemented
        if self._part is not None and compat.is_random(func):
            return self._draw_part(func, args, kwargs or {}, *self._part)
        return self.run(func, args, kwargs or {})

    def _drawn_together(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on a DTensor that draws this process's part of what its mesh draws."""
        self._part = part_of_draw(args[0]._spec)
        try:
            with self, tracing_draws():
                return func(*args, **kwargs)
        finally:
            self._part = None

    def _draw_part(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], start: int, end: int) -> Any:
        """The operation on the local part, from where that begins in what is drawn."""
        name = func._schema.name.partition("::")[2]
        kwargs = {
            key: value for key, value in kwargs.items() if key not in ("device", "generator") and value is not None
        }
        call = encoded_call(name, args, kwargs, _named_part(args))
        drawn = self.run(
            random_ops().part_draw, ([arg for arg in args if isinstance(arg, TraceTensor)], call, start, end), {}
        )
        if name.endswith("_"):
            return self.run(aten.copy_.default, (args[0], drawn[0]), {})
        return drawn if len(func._schema.returns) == 2 else drawn[0]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `func(*args, **kwargs)` (any ATen overload) and return its results as the program sees them."""
        time_limit.check()
        handler = handler_of(func)
        if args and args[0].__class__ in _NUMBERS:
            args = self._with_tensor(func, args)
        if handler is not None:
            return handler(self, func, args, kwargs)
        return self.record(func, args, kwargs)

    def _with_tensor(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of an op of tensors that is given numbers alone.

        Dispatch modes see Python's numbers in place of the tensors that torch makes of them, and vmap's rules cast
        such a tensor.
        """
        if not _begins_with_tensor(func) or any(isinstance(arg, torch.Tensor) for arg in args[1:]):
            return args
        return (self.record(aten.full.default, ([], args[0]), {"dtype": _NUMBERS[args[0].__class__]}), *args[1:])

    def replay(self, func: Any, source: TraceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TraceTensor:
        """As `Recorder.replay`."""
        return views.replay(self, func, source, args, kwargs)

    def inverse(self, view: tuple[Any, Any, Any], parent: TraceTensor, new: TraceTensor) -> TraceTensor:
        """As `Recorder.inverse`."""
        return views.inverse(self, view, parent, new)


@functools.cache
def handler_of(func: Any) -> Handler | None:
    """How an op is traced; None: recorded as it is."""
    named = special.HANDLERS.get(func) or masked_writes.HANDLERS.get(func)
    if named is not None:
        return named
    if not isinstance(func, torch._ops.OpOverload):
        return special.refuse_operator
    if compat.communicates(func):
        return collectives.handler_of(func)
    named = foreach.handler_of(func)
    if named is not None:
        return named
    if func._schema.is_mutable:
        return mutation.run_mutation
    named = views.HANDLERS.get(func)
    if named is not None:
        return named
    if compat.is_composite(func):
        return special.run_composite
    if compat.is_view_op(func):
        return views.unknown_view
    return None
