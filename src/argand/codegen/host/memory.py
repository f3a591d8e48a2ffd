"""Where each buffer of a schedule lives.

With constant sizes, temporaries share one arena: a buffer takes bytes that no buffer alive at the same time uses. What
the caller gets is allocated anew in each call, and so is what an ATen kernel without `out=` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from argand.errors import InternalError
from argand.graph.expr import Expr, as_int, product
from argand.ir.kernel import KernelPlan, Schedule, Step
from argand.ir.loops import Buffer, ExternNode, TensorRef, aliases_arguments, tensor_refs

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Live:
    """Steps between which a piece of memory is in use, both ends included."""

    first: int
    last: int

    def overlaps(self, other: Live) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(slots=True)
class MemoryPlan:
    """Where buffers live.

    Arguments:
        offsets: arena buffers (temporaries): bytes from the start of the arena.
        nbytes: size of the arena.
        allocated: buffers that `call` allocates, and the step before which it does.
        returned_by: buffers that an extern call returns.
        same_as: buffers that take over the memory of another one.
        frees: for each step, buffers outside the arena whose memory is not needed after it.
        live: life of each buffer's memory (of the first buffer, where several share it in turn).
    """

    offsets: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0
    allocated: dict[str, int] = field(default_factory=dict)
    returned_by: set[str] = field(default_factory=set)
    same_as: dict[str, str] = field(default_factory=dict)
    frees: dict[int, list[str]] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)


def uses(step: Step) -> Iterable[str]:
    """Buffers that a step reads or writes."""
    if isinstance(step, KernelPlan):
        return (*step.inputs, *step.outputs)
    refs = [ref.buffer for ref in tensor_refs((step.args, step.kwargs))]
    return (*refs, *step.mutates, *(name for name in step.outputs if name is not None))


def results(step: Step) -> Iterable[str]:
    """Buffers that a step defines."""
    if isinstance(step, KernelPlan):
        return step.outputs
    return [name for name in step.outputs if name is not None]


def nbytes(buffer: Buffer) -> int | None:
    """Bytes of a buffer's memory; None when they depend on a size symbol."""
    size = as_int(extent(buffer))
    return None if size is None else size * int(buffer.dtype.itemsize)


def extent(buffer: Buffer) -> Expr:
    """Elements from the first to the last of a dense buffer."""
    return product(buffer.size)


def plan_memory(schedule: Schedule, *, arena: bool = True) -> MemoryPlan:
    """Decide where every buffer lives.

    Arguments:
        schedule: ordered steps.
        arena: False allocates every temporary in each call.
    """
    plan = MemoryPlan(same_as=dict(schedule.aliases))
    given = {*schedule.inputs, *schedule.constants}
    kept = {ref.buffer for ref in tensor_refs(schedule.outputs)}
    lives = _lives(schedule, given)
    plan.live = {name: live for name, live in lives.items() if name not in plan.same_as}
    kept_roots = {_root(plan.same_as, name) for name in kept}
    for step in schedule.steps:
        if isinstance(step, ExternNode) and step.out_variant is None:
            plan.returned_by.update(results(step))
    temporaries = []
    for name, live in plan.live.items():
        if name in given or name in plan.returned_by:
            continue
        fits_arena = arena and name not in kept_roots and schedule.buffers[name].device.type == "cpu"
        if fits_arena and nbytes(schedule.buffers[name]) is not None:
            temporaries.append(name)
        else:
            plan.allocated[name] = live.first
    _pack(plan, temporaries, schedule.buffers)
    for name in (*plan.allocated, *plan.returned_by):
        if name not in kept_roots and name in plan.live:
            plan.frees.setdefault(plan.live[name].last, []).append(name)
    return plan


def _root(same_as: dict[str, str], name: str) -> str:
    while name in same_as:
        name = same_as[name]
    return name


def _lives(schedule: Schedule, given: set[str]) -> dict[str, Live]:
    """Life of every buffer, that of later users of the same memory included."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    holders: dict[str, list[str]] = {}  # result that may be a view -> buffers whose memory it may view
    for number, step in enumerate(schedule.steps):
        for name in uses(step):
            first.setdefault(name, number)
            last[name] = number
        if isinstance(step, ExternNode) and aliases_arguments(step):
            arguments = [ref.buffer for ref in tensor_refs((step.args, step.kwargs))]
            for name in results(step):
                holders[name] = arguments
    end = len(schedule.steps)
    for ref in (*tensor_refs(schedule.outputs), *(ref for _, ref in schedule.mutations)):
        if ref.buffer not in given:
            first.setdefault(ref.buffer, end)
        last[ref.buffer] = end
    for name in reversed(list(first)):
        for held in holders.get(name, ()):
            last[held] = max(last.get(held, 0), last[name])
    for name, taken in reversed(schedule.aliases.items()):
        if taken not in last or name not in last:
            raise InternalError(f"buffer {name} takes the memory of {taken}, which is not in the schedule")
        last[taken] = max(last[taken], last[name])
    return {name: Live(first[name], last[name]) for name in first}


def _pack(plan: MemoryPlan, names: list[str], buffers: dict[str, Buffer]) -> None:
    """Give arena offsets: large buffers first, each in the smallest gap that is free during its life."""
    sizes = {name: _aligned(nbytes(buffers[name]) or 1) for name in names}
    placed: list[tuple[int, int, Live]] = []  # offset, end, life
    for name in sorted(names, key=lambda n: (-sizes[n], plan.live[n].first)):
        live, size = plan.live[name], sizes[name]
        busy = sorted((offset, end) for offset, end, other in placed if other.overlaps(live))
        best, best_gap, position = None, 0, 0
        for offset, end in busy:
            gap = offset - position
            if gap >= size and (best is None or gap < best_gap):
                best, best_gap = position, gap
            position = max(position, end)
        start = position if best is None else best
        plan.offsets[name] = start
        placed.append((start, start + size, live))
        plan.nbytes = max(plan.nbytes, start + size)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def check_plan(plan: MemoryPlan, schedule: Schedule) -> None:
    """No two arena buffers that are alive at the same time overlap.

    Raises:
        InternalError: two do.
    """
    names = list(plan.offsets)
    for number, one in enumerate(names):
        for two in names[number + 1 :]:
            if not plan.live[one].overlaps(plan.live[two]):
                continue
            start, other = plan.offsets[one], plan.offsets[two]
            if start < other + (nbytes(schedule.buffers[two]) or 0) and other < start + (
                nbytes(schedule.buffers[one]) or 0
            ):
                raise InternalError(f"buffers {one} and {two} share memory while both are in use")


def same_layout(ref: TensorRef, buffer: Buffer) -> bool:
    """Whether a reference is the buffer as it was allocated."""
    return (
        ref.size == buffer.size
        and ref.stride == buffer.stride
        and as_int(ref.offset) == 0
        and ref.dtype in (None, buffer.dtype)
    )
