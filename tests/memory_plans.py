"""Whether a memory plan is sound, for tests of what makes plans."""

from __future__ import annotations

from argand.codegen.host.memory import MemoryPlan, nbytes
from argand.ir.kernel import Schedule


def check_plan(plan: MemoryPlan, schedule: Schedule) -> None:
    """No two arena buffers that are alive at the same time overlap.

    Raises:
        AssertionError: two do.
    """
    _check_slots(plan, schedule)
    names = list(plan.offsets)
    for number, one in enumerate(names):
        for two in names[number + 1 :]:
            if not plan.live[one].overlaps(plan.live[two]) or not _same_device(schedule, one, two):
                continue
            start, other = plan.offsets[one], plan.offsets[two]
            if start < other + (nbytes(schedule.buffers[two]) or 0) and other < start + (
                nbytes(schedule.buffers[one]) or 0
            ):
                raise AssertionError(f"buffers {one} and {two} share memory while both are in use")


def _same_device(schedule: Schedule, one: str, two: str) -> bool:
    return schedule.buffers[one].device == schedule.buffers[two].device


def _check_slots(plan: MemoryPlan, schedule: Schedule) -> None:
    names = list(plan.slot_of)
    for number, one in enumerate(names):
        for two in names[number + 1 :]:
            same = plan.slot_of[one] == plan.slot_of[two] and _same_device(schedule, one, two)
            if same and plan.live[one].overlaps(plan.live[two]):
                raise AssertionError(f"buffers {one} and {two} share a slot while both are in use")
