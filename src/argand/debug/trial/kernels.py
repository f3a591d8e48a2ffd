"""Kernels of a compiled graph replaced: by an interpreter, by nothing, or by themselves with somebody who looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from argand.backends.programs import generation
from argand.ir.kernel import KernelPlan, Schedule
from argand.runtime import host

Kernel = Callable[..., None]
_GRID = 3  # arguments before the tensors of a launch on a GPU


def host_module(schedule: Schedule, replacement: Callable[[KernelPlan, Kernel], Kernel]) -> ModuleType:
    """The host module of a schedule, each of whose kernels is what `replacement` makes of it."""
    module = host.load_module(generation.host_text(schedule), schedule.constants)
    for plan in schedule.kernels():
        module.__dict__[plan.name] = replacement(plan, module.__dict__[plan.name])
    return module


class Launches:
    """The launches of one call of a host module after the other.

    Attributes:
        steps: what is launched, in order.
        sizes: the size symbols and numbers of the call.
        position: which launch comes next.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steps = [step for step in schedule.steps if isinstance(step, KernelPlan)]
        self.sizes: dict[str, int | float] = {}
        self.position = 0

    def begin(self, args: Sequence[Any]) -> None:
        """A call begins."""
        given = dict(zip(self.schedule.inputs, args))
        self.position = 0
        self.sizes = {name: value for name, value in given.items() if isinstance(value, (int, float))}
        for symbol, name, dim in self.schedule.input_symbols:
            if name:
                self.sizes[symbol] = int(given[name].size(dim))

    def take(self, args: Sequence[Any]) -> tuple[int, dict[str, Any]]:
        """A kernel is launched with these arguments: which launch that is, and its buffers by name."""
        number, self.position = self.position, (self.position + 1) % len(self.steps)
        plan = self.steps[number]
        first = 0 if self.schedule.targets[plan.device].name == "cpp" else _GRID
        return number, dict(zip((*plan.inputs, *plan.outputs), args[first:]))
