"""Programs whose parameters are taken for constants: what follows from these is computed when they are new.

A parameter counts as the same while it is the same tensor, of the same version, in the same memory, with the same
number in the middle: versions do not tell of what is written through `.data`, which mostly changes all numbers.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand import events
from argand._core.calls import uncaptured
from argand.quick_dataclasses import dataclass
from argand.runtime.host import HostCall
from argand.runtime.recipes import Described, with_recipe

_KEPT = 4  # sets of parameters: modules of one class share their code
_OFTEN = 16  # calls that a set serves at least; several in a row that serve fewer are changed in every few calls
_PATIENCE = 8  # such sets in a row

Preparation = Callable[..., Sequence[Any]]
_NOTHING = ctypes.c_uint32()


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What a parameter was.

    Arguments:
        known: gives it while it lives.
        place: where its memory begins.
        sample: some of that memory.
        held: what was there.
    """

    position: int
    known: weakref.ref[torch.Tensor]
    version: int
    place: int
    sample: ctypes.c_uint32
    held: int

    def is_same(self, inputs: list[Any]) -> bool:
        """Whether it is one of the inputs, as it was."""
        given: Any = inputs[self.position]
        known: Any = self.known()
        if known is not given or given._version != self.version or given.data_ptr() != self.place:
            return False
        return self.sample.value == self.held


@dataclass(slots=True)
class _Set:
    """What was computed of some parameters."""

    parameters: list[_Parameter]
    values: tuple[Any, ...]
    calls: int = 0

    def lives(self) -> bool:
        """Whether all parameters do."""
        return all(parameter.known() is not None for parameter in self.parameters)


class FrozenCall(Described):
    """A function of a program's inputs.

    Arguments:
        positions: inputs that are taken for constants.
        prepare: what is computed of the inputs once.
        run: called with the inputs and that.
        plain: makes a function that takes nothing for a constant; None where there is no compiler to make it.
    """

    def __init__(
        self,
        positions: Sequence[int],
        prepare: Preparation,
        run: HostCall,
        plain: Callable[[], HostCall] | None = None,
    ) -> None:
        self.positions, self.prepare, self.run = positions, prepare, run
        self._plain = plain
        self._otherwise: HostCall | None = None
        self._sets: tuple[_Set, ...] = ()
        self._changes = 0

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        for prepared in self._sets:
            if all(parameter.is_same(inputs) for parameter in prepared.parameters):
                prepared.calls += 1
                inputs += prepared.values
                return self.run(inputs)
        return self._anew(inputs)

    def _anew(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self._otherwise is not None:
            return self._otherwise(inputs)
        tensors = [inputs[position] for position in self.positions]
        if any(tensor.is_inference() for tensor in tensors):
            return self._give_up("parameters made in inference mode have no version that tells of changes")(inputs)
        last = self._sets[0] if self._sets else None
        self._changes = self._changes + 1 if last is not None and last.calls < _OFTEN else 0
        if self._changes > _PATIENCE and self._plain is not None:
            return self._give_up(f"parameters changed {self._changes} times within {_OFTEN} calls each")(inputs)
        prepared = uncaptured(self._prepared, inputs, tensors)
        inputs += prepared.values
        return self.run(inputs)

    def _prepared(self, inputs: list[Any], tensors: list[torch.Tensor]) -> _Set:
        parameters = [self._parameter(position, tensor) for position, tensor in zip(self.positions, tensors)]
        with torch.no_grad(), events.span("freeze", "runtime", parameters=len(tensors)):
            prepared = _Set(parameters, tuple(self.prepare(*inputs)))
        self._sets = (prepared, *[each for each in self._sets if each.lives()][: _KEPT - 1])
        return prepared

    def _parameter(self, position: int, tensor: torch.Tensor) -> _Parameter:
        place, sample = tensor.data_ptr(), _NOTHING
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.nbytes >= ctypes.sizeof(sample):
            sample = ctypes.c_uint32.from_address(place + tensor.nbytes // 8 * 4)
        return _Parameter(position, weakref.ref(tensor, self._forget), tensor._version, place, sample, sample.value)

    def _forget(self, _: object) -> None:
        """A parameter is gone: so is what was computed of it."""
        self._sets = tuple([each for each in self._sets if each.lives()])

    def _give_up(self, reason: str) -> HostCall:
        events.emit("fallback", "runtime", reason, backend="native", scope="freezing", reason=reason)
        self._sets = ()
        self._otherwise = uncaptured(self._plain) if self._plain is not None else self._prepared_each_time
        return self._otherwise

    def _prepared_each_time(self, inputs: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            inputs += uncaptured(self.prepare, *inputs)
        return self.run(inputs)


def storable(frozen: FrozenCall, prepare: Preparation) -> FrozenCall:
    """`frozen`, which later processes make again.

    Arguments:
        prepare: what it prepares by, as a graph's function.
    """
    return with_recipe(frozen, "frozen", lambda: (tuple(frozen.positions), prepare, frozen.run))
