"""Calls that make tensors of subclasses, or that `__torch_function__` of a program makes."""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.facts import callables
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.sizes import subclasses
from argand.capture.torch_functions.torch_calls import handler

_Tensor = torch.Tensor


@handler(torch.Tensor.__torch_function__)
def _called_by_name(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`super().__torch_function__(func, types, args, kwargs)` in a program's own."""
    names = ("cls", "func", "types", "args", "kwargs")
    bound: dict[str, Any] = {"args": (), "kwargs": None, **dict(zip(names, args)), **kwargs}
    given, named = _given(state, bound)
    if set(bound) != set(names) or not is_a(bound["cls"], type):
        raise _refused(bound.get("cls"), "by a call of __torch_function__ that torch does not make")
    types = state.interpreter.shadow(bound["types"])
    return subclasses.default(state, bound["cls"], bound["func"], types, given, named)


@handler(torch._C._disabled_torch_function_impl)
def _disabled(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The same in a class that derives from Parameter: `(func, types, args, kwargs)`, results are plain tensors."""
    bound = dict(zip(("func", "types", "args", "kwargs"), args))
    given, named = _given(state, bound)
    if kwargs or "func" not in bound:
        raise _refused("Parameter", "by a call of __torch_function__ that torch does not make")
    return subclasses.disabled(state, bound["func"], given, named)


def _given(state: CaptureState, bound: dict[str, Any]) -> tuple[Args, Kwargs]:
    """The arguments of the function that `__torch_function__` is told of."""
    plain = state.interpreter.shadow
    given, named = bound.get("args", ()), bound.get("kwargs")
    if not is_a(given, tuple | list) or not (named is None or is_a(named, dict)):
        raise _refused("Tensor", "by a call of __torch_function__ that torch does not make")
    return tuple(plain(given)), {} if named is None else dict(plain(named))


# ---------------------------------------------------------------------- making them, and telling torch to ignore them


def _refused(cls: Any, what: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="tensor object made",
        context=cls if type(cls) is str else callables.text_of(cls, "__name__"),
        explanation=f"A tensor of a subclass is made {what}.",
    )


@handler(torch._C.TensorBase.__new__)
def _new(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`Sub(tensor)` without a `__new__` of the class's own: an alias; `Sub([1, 2])` as `torch.Tensor([1, 2])`."""
    cls, *rest = args
    if cls is _Tensor or kwargs or len(rest) != 1 or not is_a(cls, type) or not issubclass(cls, _Tensor):
        raise _refused(cls, "from something else than one tensor")
    if is_a(rest[0], _Tensor):
        return subclasses.convert(state, rest[0], cls)
    tensor = state.interpreter.call(_Tensor, tuple(rest))
    return subclasses.convert(state, tensor, cls, fresh=True)


@handler(torch.Tensor._make_subclass)
def _make_subclass(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`torch.Tensor._make_subclass(cls, data)`: over the same memory, detached."""
    bound: dict[str, object] = {"require_grad": False, **dict(zip(("cls", "data", "require_grad"), args)), **kwargs}
    cls, data = bound.get("cls"), bound.get("data")
    if set(bound) != {"cls", "data", "require_grad"} or not is_a(cls, type) or not is_a(data, _Tensor):
        raise _refused(cls, "with options")
    if bound["require_grad"] is not False:
        raise _refused(cls, "as a leaf that requires grad")
    worn = state.graph.dressed.get(id(data))
    plain = data if worn is None else worn.plain
    with torch._C.DisableTorchFunction():
        detached = state.graph.call(_Tensor.detach, (plain,), {})
    return subclasses.convert(state, detached, cls, fresh=True)


def _as_subclass(
    interp: Interpreter, cls: type, name: str, owner: object, args: list[object], kwargs: Kwargs
) -> object:
    """`tensor.as_subclass(cls)`, which asks no `__torch_function__`."""
    wanted = args[0] if args else kwargs.get("cls")
    if len(args) + len(kwargs) != 1 or not is_a(wanted, type) or not issubclass(wanted, _Tensor):
        return interp.native(_Tensor.as_subclass, owner, *args, **kwargs)
    return subclasses.convert(interp.state, owner, wanted)


native_handlers.method(torch._C.TensorBase, "as_subclass")(_as_subclass)


def _turned_off(interp: Interpreter, cls: type, name: str, owner: object, args: list[object], kwargs: Kwargs) -> object:
    """`with torch._C.DisableTorchFunctionSubclass():`."""
    state = interp.state
    undressing = state.graph.undressing
    if name == "__enter__":
        if cls is torch._C.DisableTorchFunction and state.graph.entered:
            raise errors.graph_break(kind="torch-function modes disabled", context="DisableTorchFunction")
        undressing.append(interp.number)
    elif undressing:
        undressing.pop()
    else:
        raise errors.graph_break(kind="mode left that was entered before", context=cls.__name__)
    return None


def _make_switch(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    switch = fn(*args, **kwargs)  # nothing happens until it is entered
    state.interpreter.born[id(switch)] = (switch, state.interpreter.number)
    return switch


for _switch in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
    handler(_switch)(_make_switch)
    native_handlers.method(_switch, "__enter__", "__exit__")(_turned_off)
