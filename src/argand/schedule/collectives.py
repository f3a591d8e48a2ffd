"""When collectives of a schedule start and end.

A start is moved up to where what it sends is there; what arrives is waited for when a step needs it, and steps that
do not need it run first (on CPUs only where no later start needs it, and where it is large). All starts keep their
order, which is that of the other processes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph import compat
from argand.graph.operators.collectives import OF_ONE, collective_ops, starts
from argand.graph.sizes.expr import as_int, product
from argand.ir.kernel import Schedule, Step, memory_of
from argand.ir.loops import Buffer, ExternNode, TensorRef, aliases_arguments, tensor_refs
from argand.schedule.access import hint_bytes, keeps_order, touched

IN_FLIGHT = 256 << 20
"""Bytes that are sent and received at a time, and that steps may make ahead of those that wait for others."""


SMALL = 1 << 20
"""Bytes sent and received, up to which two processes on CPUs are done before their threads have changed places."""


def is_start(step: Step) -> bool:
    """The step starts a collective."""
    return isinstance(step, ExternNode) and starts(step.target)


def is_end(step: Step) -> bool:
    """The step waits for what a collective delivers."""
    return isinstance(step, ExternNode) and compat.waits(step.target)


def overlap(steps: list[Step], buffers: Mapping[str, Buffer], limit: int = IN_FLIGHT) -> list[Step]:
    """The steps in an order in which computing and communicating overlap.

    Arguments:
        limit: bytes in flight, and bytes made ahead, beyond which what comes next in the program is waited for.
    """
    if not any(map(is_start, steps)):
        return steps
    steps = _starts_early(steps)
    placing = _Placing(steps, buffers, limit)
    for number in range(len(steps)):
        placing.take(number)
    placing.finish()
    return [steps[number] for number in placing.placed]


def _dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """For each step, earlier ones that must run before it."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    effect: int | None = None
    barrier: int | None = None
    dependencies: list[set[int]] = []
    for number, step in enumerate(steps):
        reads, writes = touched(step)
        deps = {writer[name] for name in reads | writes if name in writer}
        for name in writes:
            deps.update(readers.pop(name, ()))
            writer[name] = number
        for name in reads - writes:
            readers.setdefault(name, []).append(number)
        if isinstance(step, ExternNode) and keeps_order(step):
            deps |= set() if effect is None else {effect}
            effect = number
        if _is_barrier(step):
            deps.update(range(number))
            barrier = number
        elif barrier is not None:
            deps.add(barrier)
        dependencies.append(deps)
    return dependencies


def _is_barrier(step: Step) -> bool:
    """It may touch memory under another name."""
    return isinstance(step, ExternNode) and (bool(step.mutates) or aliases_arguments(step))


def _starts_early(steps: Sequence[Step]) -> list[Step]:
    """Each start behind the last step that it needs, one at a time: what moves up no other step needs any later."""
    placed: list[int] = []
    deps = _dependencies(steps)
    for number, step in enumerate(steps):
        place = len(placed)
        if is_start(step):
            while place and placed[place - 1] not in deps[number]:
                place -= 1
        placed.insert(place, number)
    return [steps[number] for number in placed]


def _bytes_of(step: Step, buffers: Mapping[str, Buffer]) -> int:
    """What a step makes; of a start, also what is sent."""
    reads, writes = touched(step)
    return sum(hint_bytes(buffers[name]) for name in (reads | writes if is_start(step) else writes))


def _at_once(steps: Sequence[Step], buffers: Mapping[str, Buffer], dependencies: Sequence[set[int]]) -> set[int]:
    """Starts on CPUs whose results later starts need, or that send and receive little.

    Their threads and those of kernels take turns, so that two on their way, or one beside a kernel, end later than one
    after the other (bench/distributed.py: parallel layers took 1.3 times as long). There is nothing to win either: what
    comes next on the chain waits for them, and what is little has arrived before the threads have changed places. A
    bucket of gradients, which nobody needs to go on, is not among them.
    """
    ends: list[set[int]] = []
    needed = set[int]()
    for number, step in enumerate(steps):
        ends.append(set[int]().union(*[ends[each] for each in dependencies[number]]))
        if is_start(step):
            needed |= ends[number]
        elif is_end(step):
            ends[number].add(number)
    read = {name for number in needed for name in touched(steps[number])[0]}
    sent = {number: touched(step)[1] for number, step in enumerate(steps) if is_start(step)}
    return {
        number
        for number, names in sent.items()
        if (names & read or _bytes_of(steps[number], buffers) <= SMALL)
        and all(buffers[name].device.type == "cpu" for name in names)
    }


class _Placing:
    """Places steps one after the other.

    `pending` are ends that nobody needed yet, `postponed` steps that need one of these, or one another. `flying` are
    the ends of each start that was placed, while not all of them are; those of `_at_once` are placed behind them.
    """

    def __init__(self, steps: list[Step], buffers: Mapping[str, Buffer], limit: int) -> None:
        self._steps = steps
        self._deps = _dependencies(steps)
        self._at_once = _at_once(steps, buffers, self._deps)
        self._limit = limit
        self._bytes = [_bytes_of(step, buffers) for step in steps]
        self._done: set[int] = set()
        self._pending: list[int] = []
        self._postponed: list[int] = []
        self._flying: dict[int, list[int]] = {}
        self._ahead = 0
        self.placed: list[int] = []

    def take(self, number: int) -> None:
        """Place a step, or let it wait."""
        step = self._steps[number]
        if number in self._done:
            return
        if is_start(step):
            self._make_room(number)
        if is_end(step):
            self._pending.append(number)
        elif self._deps[number] <= self._done:
            self._place(number)
            if self._postponed:
                self._ahead += self._bytes[number]
                if self._ahead > self._limit:
                    self._release(self._postponed[0])
        else:
            self._postponed.append(number)
            if is_start(step) or _is_barrier(step):
                self._release(number)
        for end in self._flying.get(number, ()) if number in self._at_once else ():
            self._release(end)

    def _make_room(self, start: int) -> None:
        """Wait for the oldest of what is on its way until one more start is within the limit."""
        while self._flying:
            oldest, ends = next(iter(self._flying.items()))
            if sum(self._bytes[each] for each in (start, *self._flying)) <= self._limit:
                break
            for end in ends:
                if end not in self._done:
                    self._release(end)
            self._flying.pop(oldest, None)

    def finish(self) -> None:
        """Place what is left, in the order of the program."""
        for number in sorted((*self._pending, *self._postponed)):
            if number not in self._done:
                self._release(number)

    def _release(self, wanted: int) -> None:
        """Place a step after what it needs, and all others that then need nothing more."""
        needed, todo = set[int](), [wanted]
        while todo:
            number = todo.pop()
            if number not in needed and number not in self._done:
                needed.add(number)
                todo += self._deps[number]
        for number in sorted(needed):
            self._place(number)
        for number in list(self._postponed):
            if number not in self._done and self._deps[number] <= self._done:
                self._place(number)
        self._pending = [number for number in self._pending if number not in self._done]
        self._postponed = [number for number in self._postponed if number not in self._done]
        self._ahead = 0

    def _place(self, number: int) -> None:
        self._done.add(number)
        self.placed.append(number)
        step = self._steps[number]
        if is_start(step):
            written = touched(step)[1]
            later = range(number + 1, len(self._steps))
            ends = [n for n in later if is_end(self._steps[n]) and not written.isdisjoint(touched(self._steps[n])[0])]
            self._flying[number] = ends
        elif is_end(step):
            self._flying = {n: ends for n, ends in self._flying.items() if not self._done.issuperset(ends)}


def arrive_in_place(schedule: Schedule) -> None:
    """Let what arrives take the memory of what is sent, where no step needs that afterwards: it is not copied then."""
    returned = {ref.buffer for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations]))}
    pinned = {*schedule.inputs, *schedule.constants, *returned}
    for step in schedule.steps:
        if isinstance(step, ExternNode) and aliases_arguments(step):
            pinned.update(name for names in touched(step) for name in names)
    for number, start in enumerate(schedule.steps):
        if not isinstance(start, ExternNode) or not starts(start.target):
            continue
        name = OF_ONE.get(str(start.target).split(".")[1])
        (pending, *others), sent = start.outputs or (None,), start.args[0]
        if name is None or pending is None or others or not _is_own(sent, schedule.buffers, pinned):
            continue
        users = [n for n in range(number + 1, len(schedule.steps)) if _uses(schedule.steps[n], {pending, sent.buffer})]
        end = schedule.steps[users[0]] if len(users) == 1 else start
        if not isinstance(end, ExternNode) or not is_end(end):
            continue
        target = getattr(torch.ops._c10d_functional, name).default
        schedule.steps[number] = replace(start, target=target, outputs=(), mutates=(sent.buffer,))
        schedule.steps[users[0]] = replace(end, target=collective_ops().received_in_place, args=(sent,))
        del schedule.buffers[pending]


def _is_own(ref: Any, buffers: Mapping[str, Buffer], pinned: set[str]) -> bool:
    """Whether a tensor is the whole of a buffer that the schedule makes, of which no one else has hold."""
    if not isinstance(ref, TensorRef) or ref.buffer in pinned:
        return False
    buffer = buffers[ref.buffer]
    return product(ref.size) is product(buffer.size) and as_int(ref.offset) == 0 and ref.dtype in (None, buffer.dtype)


def _uses(step: Step, names: set[str]) -> bool:
    reads, writes = touched(step)
    return not names.isdisjoint(reads | writes)


def verify_collectives(schedule: Schedule) -> None:
    """Nothing but ends reads what a start returns, and between the two nothing writes over what is sent or arrives.

    Raises:
        InternalError: what is wrong.
    """
    flying: dict[str, set[str]] = {}  # what a start returned -> memory that is read until its end
    for step in schedule.steps:
        reads, writes = touched(step)
        memory = {memory_of(schedule.aliases, name) for name in writes}
        ended = reads & flying.keys() if is_end(step) else set()
        for pending, held in flying.items():
            if pending in reads and not is_end(step):
                raise InternalError(f"step {step.name} reads {pending} before it has arrived")
            if pending not in ended and not memory.isdisjoint({*held, pending}):
                raise InternalError(f"step {step.name} writes over what is sent for {pending}")
        for pending in ended:
            del flying[pending]
        if is_start(step):
            held = {memory_of(schedule.aliases, name) for name in reads}
            flying.update(dict.fromkeys(writes, held))
    if flying:
        raise InternalError(f"nothing waits for {sorted(flying)}")
