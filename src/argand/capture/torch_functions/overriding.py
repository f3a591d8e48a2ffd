"""What the program itself says torch functions do: its torch-function modes, and classes with `__torch_function__`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from argand import errors
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.metadata.call_targets import device_constructors
from argand.capture.objects import instances
from argand.capture.sizes import subclasses
from argand.capture.sizes.subclasses import PLAIN
from argand.capture.torch_functions.nested import dispatching
from argand.graph import nested_tensors as jagged
from argand.graph.operators.namespaces import OPERATORS, is_theirs, name_of


def concerns(builder: GraphBuilder, types: Iterable[type]) -> bool:
    """Whether a call has to be looked at here at all."""
    return bool(builder.entered) or any(cls not in PLAIN for cls in types)


def dispatch(mode: TraceMode, func: Function, types: Iterable[type], args: Args, kwargs: Kwargs) -> object:
    """Ask the innermost mode, else the arguments' classes, else record the call."""
    builder = mode.builder
    entered = builder.entered
    if entered and not isinstance(entered[-1].mode, torch.device):
        return _ask_mode(mode, func, types, args, kwargs)
    if entered and kwargs.get("device") is None and func in device_constructors():
        kwargs = {**kwargs, "device": entered[-1].mode}
    owners = [] if builder.undressing else _overloaded(types, args, kwargs)
    if not owners:
        if builder.nested and jagged.among(args, kwargs):
            return dispatching.call(mode, func, args, kwargs)
        return subclasses.call(builder, func, args, kwargs)
    interp = builder.state.interpreter
    for owner in owners:
        _refuse_own(interp, owner)
        with mode:
            method = interp.getattr(type(owner), "__torch_function__")
            result = interp.enter(method, (func, tuple(types), args, kwargs), {})
        if result is not NotImplemented:
            return result
    names = ", ".join(sorted(type(owner).__name__ for owner in owners))
    raise errors.graph_break(
        kind="torch function without an implementation",
        context=f"{getattr(func, '__name__', func)}: {names}",
        explanation=f"Every __torch_function__ of {names} returned NotImplemented.",
        hints=("Eager raises TypeError here: handle this function.",),
    )


def _refuse_own(interp: Any, owner: object) -> None:
    """torch asks the object, not its class: what its namespace or a `__getattr__` answers is not followed here."""
    own = instances.own_dict(owner)
    if interp.types.lookup(type(owner), "__torch_function__") is NULL or (own and "__torch_function__" in own):
        raise errors.graph_break(
            kind="torch function of an object",
            context=type(owner).__name__,
            explanation="An object has a __torch_function__ that its class has not.",
        )


def overridden(state: CaptureState, args: Iterable[object]) -> bool:
    """What `has_torch_function` says of arguments."""
    builder = state.graph
    if any(not isinstance(entry.mode, torch.device) for entry in builder.entered):
        return True
    if builder.undressing:
        return False
    off = torch._C._disabled_torch_function_impl
    for value in args:
        cls = type(value)
        if cls not in PLAIN and getattr(cls, "__torch_function__", off) is not off:
            return True
    return False


def _ask_mode(mode: TraceMode, func: Function, types: Iterable[type], args: Args, kwargs: Kwargs) -> object:
    builder = mode.builder
    entry = builder.entered.pop()
    interp = builder.state.interpreter
    try:
        with mode:
            method = interp.getattr(entry.mode, "__torch_function__")
            return interp.enter(method, (func, tuple(types), args, kwargs), {})
    finally:
        builder.entered.append(entry)


def _overloaded(types: Iterable[type], args: Args, kwargs: Kwargs) -> list[object]:
    """Arguments that implement the protocol, in the order of `types`: that in which torch asks them."""
    wanted = [cls for cls in types if cls not in PLAIN]
    if not wanted:
        return []
    first_of: dict[type, object] = {}
    pending = [*args, *kwargs.values()]
    flat: list[object] = []
    for value in pending:
        flat.extend(value if isinstance(value, (list, tuple)) else [value])
    for value in flat:
        cls = type(value)
        if cls in wanted:
            first_of.setdefault(cls, value)
    return [first_of[cls] for cls in wanted if cls in first_of]


class TraceMode(TorchFunctionMode):
    """Sends every torch function to a `GraphBuilder` while it is active."""

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__()
        self.builder = builder

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        builder = self.builder
        builder.observed += 1
        if type(func) in OPERATORS and is_theirs(func):
            builder.state.guards.operators.add(name_of(func))
        try:
            if builder.entered or builder.dressed or builder.nested or (types and concerns(builder, types)):
                return dispatch(self, func, types, args, kwargs or {})
            return builder.call(func, args, kwargs or {})
        except errors.GraphBreak as ending:
            builder.state.stopped = ending.reason
            raise

    def asked(self, func: Function, types: Iterable[type], args: Args, kwargs: Kwargs) -> object:
        """A call that has gone past this mode: what modes and classes of the program say of it."""
        return dispatch(self, func, types, args, kwargs)
