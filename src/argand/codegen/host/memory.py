"""Where each buffer of a schedule lives.

Temporaries of a device share one arena: a buffer takes bytes that no buffer alive at the same time uses. Where sizes
depend on symbols, the arena has slots, whose places are computed when sizes are known. What the caller gets is
allocated anew in each call, and so are what an ATen kernel without `out=` returns, and temporaries that are too large
for an arena that is kept between calls (`Target.arena_largest`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final

import torch

from argand.codegen.host.convolutions import returns_result
from argand.errors import InternalError
from argand.graph import compat
from argand.graph.sizes.expr import Expr, Sym, as_int, evaluate, product
from argand.graph.sizes.relations import at_least
from argand.ir.kernel import CPU, KernelPlan, Schedule, Step, memory_of
from argand.ir.loops import Buffer, ExternNode, TensorRef, aliases_arguments, tensor_refs
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass

BLOCK_BYTES = 16 << 20  # of what a forward keeps
REUSED_BYTES = 128 << 20  # of what a forward keeps, up to which later ones use it again: it stays there in backwards
LEAST_REUSED = 1 << 17  # bytes, below which the C library keeps them itself
BLOCK_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Live:
    """Steps between which a piece of memory is in use, both ends included."""

    first: int
    last: int

    def overlaps(self, other: Live) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(slots=True)
class Space:
    """The arena of a device.

    Arguments:
        alignment: of each buffer, in bytes.
        nbytes: size of the arena, slots excluded.
        slots: bytes of each slot, in order, behind the first `nbytes` bytes.
    """

    alignment: int
    nbytes: int = 0
    slots: list[Expr] = field(default_factory=list)

    def aligned(self, count: int) -> int:
        """`count` rounded up."""
        return -(-count // self.alignment) * self.alignment


@dataclass(slots=True)
class Block:
    """One allocation for several buffers that a forward keeps.

    Arguments:
        before: the step before which it is allocated.
        nbytes: its size.
        offsets: bytes from its start to each of its buffers.
    """

    before: int
    nbytes: int = 0
    offsets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryPlan:
    """Where buffers live.

    Arguments:
        spaces: arenas, by device.
        offsets: arena buffers (temporaries): bytes from the start of the arena.
        slot_of: arena buffers whose size depends on symbols: their slot.
        allocated: buffers that `call` allocates, and the step before which it does.
        blocks: allocations that `allocated` buffers which a backward reads share.
        reused: whether the memory of blocks is used again by later calls.
        returned_by: buffers that an extern call returns.
        same_as: buffers that take over the memory of another one.
        frees: for each step, buffers outside the arena, inputs among them, whose memory is not needed after it.
        live: life of each buffer's memory (of the first buffer, where several share it in turn).
    """

    spaces: dict[torch.device, Space] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    slot_of: dict[str, int] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    reused: bool = False
    returned_by: set[str] = field(default_factory=set)
    same_as: dict[str, str] = field(default_factory=dict)
    frees: dict[int, list[str]] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)

    def in_arena(self, name: str) -> bool:
        """Whether a buffer has a place of its own in the arena."""
        return name in self.offsets or name in self.slot_of

    @property
    def nbytes(self) -> int:
        """Size of the CPU's arena, slots excluded."""
        return self.spaces[CPU].nbytes if CPU in self.spaces else 0

    @property
    def slots(self) -> list[Expr]:
        """Bytes of each slot of the CPU's arena."""
        return self.spaces[CPU].slots if CPU in self.spaces else []


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
    return as_int(_bytes(buffer))


def extent(buffer: Buffer) -> Expr:
    """Elements from the first to the last of a dense buffer."""
    return product(buffer.size)


def _bytes(buffer: Buffer) -> Expr:
    """Bytes of a buffer's memory."""
    return extent(buffer) * int(buffer.dtype.itemsize)


def leaving_early(schedule: Schedule) -> list[tuple[int, list[str]]]:
    """Per group of outputs that leave a run before its end, the step after which nothing uses their memory, and the
    buffers that nobody else holds: those of earlier groups have left by then."""
    given = {*schedule.inputs, *schedule.constants}
    lives = _lives(replace(schedule, outputs=[], mutations=[]), given)
    roots = [_root(schedule, output) for output in schedule.outputs]
    left, reached = list[tuple[int, list[str]]](), 0
    single = {root for root in roots if root in lives and root not in given and roots.count(root) == 1}
    for outputs, inputs in schedule.arrivals:
        group = [roots[number] for number in outputs]
        read = [lives[name].last for name in [schedule.inputs[number] for number in inputs] if name in lives]
        ends = [lives[root].last if root in single else len(schedule.steps) for root in group]
        reached = max([reached, *ends, *read])
        left.append((reached, [root for root in group if root in single]))
    return left


def _root(schedule: Schedule, output: Any) -> str:
    return memory_of(schedule.aliases, output.buffer) if isinstance(output, TensorRef) else ""


def plan_memory(schedule: Schedule, *, arena: bool = True) -> MemoryPlan:
    """Decide where every buffer lives.

    Arguments:
        schedule: ordered steps.
        arena: False allocates every temporary in each call.
    """
    plan = MemoryPlan(same_as=dict(schedule.aliases))
    given = {*schedule.inputs, *schedule.constants}
    kept = _seen(schedule, {ref.buffer for ref in tensor_refs(schedule.outputs)})
    lives = _lives(schedule, given)
    plan.live = {name: live for name, live in lives.items() if name not in plan.same_as}
    kept_roots = {memory_of(plan.same_as, name) for name in kept}
    for step in schedule.steps:
        if isinstance(step, ExternNode) and returns_result(step):
            plan.returned_by.update(results(step))
    temporaries: dict[torch.device, list[str]] = {}
    outside = _out_of_reach(schedule)
    for name, live in plan.live.items():
        if name in given or name in plan.returned_by:
            continue
        device = schedule.buffers[name].device
        target = schedule.targets.get(device)
        wanted = arena and name not in kept_roots and (target is None or target.host_memory or name not in outside)
        if wanted and target is not None and _fits_arena(schedule.buffers[name], target, schedule.hints):
            plan.spaces.setdefault(device, Space(target.arena_alignment))
            temporaries.setdefault(device, []).append(name)
        else:
            plan.allocated[name] = live.first
    _share_blocks(plan, schedule)
    for device, names in temporaries.items():
        known = [name for name in names if nbytes(schedule.buffers[name]) is not None]
        _pack(plan, plan.spaces[device], known, schedule.buffers)
        _assign_slots(plan, plan.spaces[device], [name for name in names if name not in plan.offsets], schedule)
    for name in (*plan.allocated, *sorted(plan.returned_by)):
        if name not in kept_roots and name in plan.live:
            plan.frees.setdefault(plan.live[name].last, []).append(name)
    written_back = {name for name, _ in schedule.mutations}
    for name in schedule.inputs:  # the caller may have given one up: then it dies here
        if name in plan.live and name not in kept_roots and name not in written_back:
            plan.frees.setdefault(plan.live[name].last, []).append(name)
    return plan


def _fits_arena(buffer: Buffer, target: Target, hints: Mapping[str, int]) -> bool:
    """Whether the target has arenas, and this is no buffer that is too large for them."""
    return target.arena_alignment > 0 and _likely(_bytes(buffer), hints) <= target.arena_largest


def _seen(schedule: Schedule, names: set[str]) -> set[str]:
    """Buffers whose memory is seen through any of `names`: a kernel may have returned a view of its argument."""
    seen = set(names)
    for step in reversed(schedule.steps):
        if isinstance(step, ExternNode) and not seen.isdisjoint(results(step)) and aliases_arguments(step):
            seen.update(ref.buffer for ref in tensor_refs((step.args, step.kwargs)))
    return seen


def _out_of_reach(schedule: Schedule) -> set[str]:
    """Buffers that are handed to code of which it is not known that it uses the device's current stream alone, and
    keeps nothing: communication, operators and functions of the program's own."""
    handed: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, ExternNode):
            target = step.target
            known = isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES
            if not known or compat.has_effect(target, step.args, step.kwargs):
                handed.update(uses(step))
    return handed


_NAMESPACES = ("aten", "prims", "argand")


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
    for name, taken in schedule.aliases.items():
        if taken in given and name in last:  # an input that a kernel overwrites: it need not be read before
            first.setdefault(taken, first[name])
            last.setdefault(taken, last[name])
        if taken not in last or name not in last:
            raise InternalError(f"buffer {name} takes the memory of {taken}, which is not in the schedule")
    for name in sorted(first, key=first.__getitem__, reverse=True):  # what takes the memory of others, before these
        overwritten = [schedule.aliases[name]] if name in schedule.aliases else []
        for held in (*overwritten, *holders.get(name, ())):
            last[held] = max(last.get(held, 0), last[name])
    return {name: Live(first[name], last[name]) for name in first}


def _share_blocks(plan: MemoryPlan, schedule: Schedule) -> None:
    """Put kept buffers that are made one after the other into one block.

    The backward lets go of them together. The gradients that it makes in the meantime find a large piece of free
    memory, where single tensors would leave holes too small for them.
    """
    roots: dict[str, bool] = {}  # memory that leaves the program -> only its backward sees it
    for ref in tensor_refs(schedule.outputs):
        root = memory_of(plan.same_as, ref.buffer)
        roots[root] = roots.get(root, True) and ref.buffer in schedule.kept
    sizes = {}
    for name in sorted(plan.allocated, key=plan.allocated.__getitem__):
        size = nbytes(schedule.buffers[name])
        if roots.get(name) and size and schedule.in_host_memory(name):
            sizes[name] = -(-size // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
    plan.reused = LEAST_REUSED <= sum(sizes.values()) <= REUSED_BYTES
    for name, size in sizes.items():
        if not plan.reused and size >= BLOCK_BYTES // 2:
            continue
        if not plan.blocks or plan.blocks[-1].nbytes + size > BLOCK_BYTES:
            plan.blocks.append(Block(plan.allocated[name]))
        plan.blocks[-1].offsets[name] = plan.blocks[-1].nbytes
        plan.blocks[-1].nbytes += size
    if not plan.reused:
        plan.blocks = [block for block in plan.blocks if len(block.offsets) > 1]


_STEPS: Final = 16  # of a schedule, whose living buffers are looked up together
_Placed = tuple[int, int, int, int]  # offset, end, first and last step


def _pack(plan: MemoryPlan, space: Space, names: list[str], buffers: dict[str, Buffer]) -> None:
    """Give arena offsets: large buffers first, each in the smallest gap that is free during its life."""
    sizes = {name: space.aligned(nbytes(buffers[name]) or 1) for name in names}
    placed: dict[int, list[_Placed]] = {}
    whole: list[_Placed] = []  # in order
    for name in sorted(names, key=lambda n: (-sizes[n], plan.live[n].first)):
        live, size = plan.live[name], sizes[name]
        born, dead = live.first, live.last
        best, best_gap, position = None, 0, 0
        times = range(born // _STEPS, dead // _STEPS + 1)
        near = [placed.get(time, ()) for time in times]
        few = sum(map(len, near)) < len(whole)
        for offset, end, first, last in sorted(set().union(*near)) if few else whole:
            if first > dead or last < born:
                continue
            gap = offset - position
            if gap >= size and (best is None or gap < best_gap):
                best, best_gap = position, gap
            position = max(position, end)
        start = position if best is None else best
        plan.offsets[name] = start
        bisect.insort(whole, (start, start + size, born, dead))
        for time in times:
            placed.setdefault(time, []).append((start, start + size, born, dead))
        space.nbytes = max(space.nbytes, start + size)


def _assign_slots(plan: MemoryPlan, space: Space, names: list[str], schedule: Schedule) -> None:
    """Give slots to buffers of symbolic size, large ones first: free during its life, and never too small."""
    sizes = {name: _bytes(schedule.buffers[name]) for name in names}
    likely = {name: _likely(size, schedule.hints) for name, size in sizes.items()}
    holders: list[list[Live]] = []
    for name in sorted(names, key=lambda n: (-likely[n], plan.live[n].first)):
        live, size = plan.live[name], sizes[name]
        slot = None
        for number in reversed(range(len(space.slots))):
            if any(other.overlaps(live) for other in holders[number]):
                continue
            if space.slots[number] is size or at_least(space.slots[number] - size, 0):
                slot = number
                break
        if slot is None:
            slot = len(space.slots)
            space.slots.append(size)
            holders.append([])
        plan.slot_of[name] = slot
        holders[slot].append(live)


def _likely(size: Expr, hints: Mapping[str, int]) -> int:
    return int(evaluate(size, {atom.name: hints.get(atom.name, 64) for atom in size.free if isinstance(atom, Sym)}))
