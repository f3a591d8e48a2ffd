"""What a torch call returns, as the ATen tracer says it: one engine answers here and when the graph is traced.

A call of one kind is traced once in a process, alone, and its graph thrown away. Calls that make nothing new (views,
writes, those that give an argument back) are not for this: torch itself runs them on stand-ins, which then share memory
as the tensors do.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import torch

from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.autograd.tracing.tracer import Tracer
from argand.capture.facts.handlers import Function
from argand.capture.metadata import kinds
from argand.capture.metadata.meta_tensors import new
from argand.errors import AutogradError
from argand.graph import compat
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass


class NotNew(Exception):
    """The call makes nothing new, or not only: torch itself is to run it on stand-ins."""


class Untraceable(Exception):
    """The tracer cannot tell what the call makes."""


class Refusal(Untraceable):
    """Torch raises for the call, or the tracer for torch's sake."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that a call makes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Several:
    """Results in a tuple, a list or one of torch's return types."""

    kind: type
    items: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """New results of a call that writes to its arguments, as a batch norm does to its statistics.

    Arguments:
        places: the numbers of the tensors that are written to, among those of the arguments.
    """

    results: Outcome
    places: tuple[int, ...]


Outcome: TypeAlias = "NewTensor | Written | Several | int | float | bool | type[Exception]"


def stand_ins(func: object, call: kinds.Call, devices: tuple[torch.device, ...], *given: object) -> object:
    """The results of a call of a kind, as stand-ins. Stand-ins that it writes to besides count that.

    Arguments:
        devices: where its tensors are, in their order; () for the CPU.
        given: the call's arguments.

    Raises:
        NotNew, Untraceable: see there.
    """
    try:
        outcome = _traced(func, call, devices, kinds.modes())
    except TypeError:  # something that cannot be hashed
        raise Untraceable from None
    if isinstance(outcome, type):
        raise outcome
    if type(outcome) is Written:
        tensors = [value for value in compat.tree_flatten(given)[0] if isinstance(value, torch.Tensor)]
        with torch.no_grad():
            for place in outcome.places:
                tensors[place].zero_()
        outcome = outcome.results
    return _stand_ins(outcome)


def _stand_ins(outcome: Outcome) -> object:
    if type(outcome) is NewTensor:
        return new(outcome.shape, outcome.strides, outcome.dtype, outcome.requires_grad)
    return outcome.kind([_stand_ins(item) for item in outcome.items]) if type(outcome) is Several else outcome


@functools.lru_cache(maxsize=1 << 14)
def _traced(func: Function, call: kinds.Call, devices: tuple[torch.device, ...], modes: object) -> Outcome:
    """What a call of a kind gives; the modes are those that are on."""
    outcome = _run(func, call, devices)
    if outcome is Refusal and torch.is_grad_enabled():  # the tracer's tensors are leaves, to which nobody writes
        with torch.no_grad():
            outcome = _run(func, call, devices)
        return outcome if outcome is NotNew else Refusal
    return outcome


def _run(func: Function, call: kinds.Call, devices: tuple[torch.device, ...]) -> Outcome:
    tracer = Tracer()
    given = _Given(tracer, devices)
    try:
        with compat.restored_torch_state():
            args, kwargs = given.of(call[0]), given.of(call[1])
            with tracer:
                result = func(*args, **kwargs)
        outcome = _Results().outcome(result)
        if any(tracer.inputs[place].requires_grad for place in tracer.mutated):
            return NotNew
        return Written(outcome, tuple(tracer.mutated)) if tracer.mutated else outcome
    except NotNew:
        return NotNew
    except AutogradError:
        return Untraceable
    except Exception as error:  # what it is, torch says on stand-ins, or on real tensors
        let_pass(error)
        return Refusal
    finally:
        tracer.close()


class _Given:
    """The tracer's tensors for the arguments of a call of a kind."""

    def __init__(self, tracer: Tracer, devices: tuple[torch.device, ...]) -> None:
        self._tracer = tracer
        self._devices = iter(devices)

    def of(self, kind: kinds.Kind) -> Any:
        if type(kind) is kinds.Sizes:
            return self._tensor(kind)
        return kinds.rebuilt(kind, self.of)

    def _tensor(self, kind: kinds.Sizes) -> TraceTensor:
        tracer, device = self._tracer, next(self._devices, kinds.CPU)
        spec = tracer.specs.make(kind.shape, kind.strides, 0, kind.dtype, device)
        node = tracer.graph.placeholder(f"arg{len(tracer.inputs)}")
        node.meta.update(val=spec.meta, device=device)
        tensor = make_tensor(Value(spec, node))
        tensor.value.input = len(tracer.inputs)
        tracer.inputs.append(tensor)
        return tensor.requires_grad_() if kind.requires_grad else tensor


class _Results:
    """What the tracer's results say."""

    def __init__(self) -> None:
        self._roots: set[int] = set()

    def outcome(self, result: Any) -> Outcome:
        """
        Raises:
            NotNew: an argument, a part of one, or of another result.
        """
        if type(result) is TraceTensor:
            return self._tensor(result)
        if type(result) is tuple or type(result) is list or hasattr(type(result), "n_sequence_fields"):
            return Several(type(result), tuple([self.outcome(item) for item in result]))
        if type(result) in (int, float, bool):
            return result
        raise NotNew

    def _tensor(self, result: TraceTensor) -> NewTensor:
        spec, root = result.value.spec, result.value.root
        if (
            root.input >= 0
            or id(root) in self._roots
            or spec.offset
            or spec.conj
            or spec.neg
            or result.constant is not None
        ):
            raise NotNew
        self._roots.add(id(root))
        return NewTensor(spec.size, spec.stride, spec.dtype, result.requires_grad)
