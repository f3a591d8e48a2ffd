"""Tensors that wait for other processes' data when they are read: what torch's functional collectives give.

Their class is torch's own, with `__torch_dispatch__`: operations on one wait and give plain tensors, views of one are
of its class again. In a graph they are dressed stand-ins like those of other subclasses (`subclasses`), over what has
arrived; transformed code makes the results wait again, for which there is nothing left to wait.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, cast

import torch

from argand.capture.facts.classify import awaits
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.values.symbolic import SymbolicNumber
from argand.capture.facts.values.tensor_info import Dressed
from argand.graph.trees import rebuilt
from argand.interruptions import let_pass

_Tensor = torch.Tensor
T = TypeVar("T")


class _Waiting(Protocol):
    """What such a tensor knows of itself."""

    completed: bool


def dress_waiting(state: CaptureState, plain: torch.Tensor, cls: type) -> torch.Tensor:
    """The stand-in of a tensor of such a class that the graph makes; `plain` is what has arrived."""
    state.interpreter.note_class(cls)
    with torch._C.DisableTorchFunction():
        dressed: torch.Tensor = torch.empty(0, device="meta").as_subclass(cls)
    cast(_Waiting, dressed).completed = False
    state.graph.dressed[id(dressed)] = Dressed(dressed, plain)
    return dressed


def plain(state: CaptureState, value: T) -> T:
    """What has arrived of such a stand-in; anything else as it is."""
    worn = state.graph.dressed.get(id(value)) if awaits(type(value)) else None
    return value if worn is None else cast(T, worn.plain)


def arrived(state: CaptureState, tensor: torch.Tensor, completed: bool = False) -> object:
    """What is read of such a stand-in once it has come: of one from outside, a tensor over the same memory."""
    cast(_Waiting, tensor).completed |= completed
    worn = state.graph.dressed[id(tensor)]
    if state.source_of(tensor) is None:
        return worn.plain
    with torch._C.DisableTorchFunction():
        return state.graph.record(torch.ops.aten.alias.default, (worn.plain,), {})


def shown(
    builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, result: T, dressed: dict[int, torch.Tensor]
) -> T:
    """The result of a call of `func`, of the classes that eager's parts have.

    Torch is asked on tensors without data. Where it needs data, the result is plain.

    Arguments:
        dressed: stand-ins that are arguments, by id of the plain one that is in `args` and `kwargs`.
    """
    probes: dict[int, torch.Tensor] = {}
    for key, tensor in dressed.items():
        if awaits(type(tensor)):
            probes[key] = type(tensor)(_like(builder.dressed[id(tensor)].plain))
            cast(_Waiting, probes[key]).completed = getattr(tensor, "completed", True)
    if not probes:
        return result
    with torch._C.DisableTorchFunction(), torch.no_grad():
        given, named = _with(args, probes), _with(kwargs, probes)
        try:
            seen = func(*given, **named)
        except Exception as error:  # a value is read, for which eager waits
            let_pass(error)
            return result
    for key, probe in probes.items():
        cast(_Waiting, dressed[key]).completed = cast(_Waiting, probe).completed
    return _dressed_as(builder.state, result, seen)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _with(value: T, probes: dict[int, torch.Tensor]) -> T:
    """Arguments with probes for what awaits, and new tensors for others, which the call may write to."""
    if isinstance(value, _Tensor):
        return cast(T, probes[id(value)] if id(value) in probes else _like(value))
    return value.hint if isinstance(value, SymbolicNumber) else rebuilt(value, lambda item: _with(item, probes))


def _dressed_as(state: CaptureState, result: T, seen: object) -> T:
    """`result` where what torch gave as such a tensor is one."""
    if isinstance(result, _Tensor):
        waiting = awaits(type(seen)) and id(result) not in state.graph.dressed
        return cast(T, dress_waiting(state, result, type(seen))) if waiting else result
    if isinstance(result, (tuple, list)) and isinstance(seen, (tuple, list)) and not isinstance(result, torch.Size):
        items = [_dressed_as(state, one, other) for one, other in zip(result, seen)]
        same = all(a is b for a, b in zip(items, result))
        return result if same else cast(T, type(result)(items))
    return result


def wait(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`tensor.wait()` and `tensor.trigger_wait()`."""
    tensor = args[0] if len(args) == 1 and not kwargs else None
    if tensor is None or id(tensor) not in state.graph.dressed or not awaits(type(tensor)):
        return NotImplemented
    return arrived(state, tensor, completed=fn.__name__ == "trigger_wait")
