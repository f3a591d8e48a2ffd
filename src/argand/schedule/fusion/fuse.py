"""Which loop nodes share a kernel: greedy, best saving first, never against a dependency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from argand.errors import InternalError
from argand.graph import time_limit
from argand.ir.loops import Buffer, LoopNode
from argand.quick_dataclasses import dataclass
from argand.schedule.access import Graph, device_of, hint_bytes, is_fusible
from argand.schedule.fusion.forms import FormedGroup, Forms

# Sharing a read of less than this is not worth a fused kernel.
MIN_SHARED_BYTES = 1 << 10
# Only the latest readers of a buffer are candidates to share the read with.
MAX_READERS = 6


@dataclass(slots=True, eq=False)
class Unit:
    """One step of the schedule in the making: a group of loop nodes, or one extern call.

    Arguments:
        number: its bit in ancestor masks.
        positions: its nodes, in program order.
        group: None for an extern call.
        deps: units that must run before it (they may have been merged away: see `Fusion.find`).
        users: units whose deps it is among (the same).
        ancestors: bit mask of every unit that must run before it.
        due: as of `Graph`, of the node that is due first.
    """

    number: int
    positions: list[int]
    group: FormedGroup | None
    deps: set[int] = field(default_factory=set)
    users: set[int] = field(default_factory=set)
    ancestors: int = 0
    fusible: bool = True
    due: int = 0


@dataclass(slots=True)
class Fusion:
    """The state of the search.

    Arguments:
        graph: nodes and dependencies.
        buffers: of the program.
        forms: decide and perform one merge.
    """

    graph: Graph
    buffers: Mapping[str, Buffer]
    forms: Forms
    units: dict[int, Unit] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)  # union-find over unit numbers (= node positions)
    recent_readers: dict[str, list[int]] = field(default_factory=dict)

    def find(self, number: int) -> int:
        """The unit that now holds node `number`."""
        parent = self.parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def run(self, enabled: bool = True) -> list[Unit]:
        """All units, after fusion."""
        for position in range(len(self.graph.nodes)):
            unit = self._add(position)
            if enabled and unit.fusible:
                self._grow(unit)
            self._note_reads(position)
        return list(self.units.values())

    def _add(self, position: int) -> Unit:
        node = self.graph.nodes[position]
        self.parent.append(position)
        group = None
        if isinstance(node, LoopNode):
            device = device_of(self.graph.accesses[position], self.buffers, node.name)
            if device not in self.forms.targets:
                raise InternalError(f"no code is generated for {device}, where loop node {node.name} runs")
            group = self.forms.single(node, position, device)
        unit = Unit(position, [position], group, fusible=is_fusible(node), due=self.graph.due[position])
        for dep in self.graph.deps[position]:
            other = self.find(dep)
            unit.deps.add(other)
            self.units[other].users.add(position)
            unit.ancestors |= self.units[other].ancestors | 1 << other
        self.units[position] = unit
        return unit

    def _note_reads(self, position: int) -> None:
        if not isinstance(self.graph.nodes[position], LoopNode):
            return
        for name in self.graph.accesses[position].reads:
            readers = self.recent_readers.setdefault(name, [])
            readers.append(position)
            del readers[:-MAX_READERS]

    def _grow(self, unit: Unit) -> None:
        """Merge `unit` with the best candidate until there is none."""
        refused: set[int] = set()
        while True:
            time_limit.check()
            for candidate in self._candidates(unit):
                if candidate in refused:
                    continue
                other = self.units[candidate]
                if self._would_cycle(other, unit):
                    refused.add(candidate)
                    continue
                first, second = sorted((other, unit), key=lambda u: u.positions[0])
                assert first.group is not None and second.group is not None  # candidates are loop units
                group = self.forms.merge(first.group, second.group)
                if group is None:
                    refused.add(candidate)
                    continue
                unit = self._join(other, unit, group)
                break
            else:
                return

    def _candidates(self, unit: Unit) -> list[int]:
        """Units that share memory with `unit`, most bytes first, latest first among equals."""
        assert unit.group is not None
        reads, writes = unit.group.reads(), unit.group.writes()
        score: dict[int, int] = {}
        for name in reads - writes:
            bytes_shared = hint_bytes(self.buffers[name])
            for position in self.graph.writers.get(name, ()):
                if position < len(self.parent):
                    other = self.find(position)
                    score[other] = score.get(other, 0) + 2 * bytes_shared + 1
            if bytes_shared < MIN_SHARED_BYTES:
                continue
            for other in {self.find(position) for position in self.recent_readers.get(name, ())}:
                score[other] = score.get(other, 0) + bytes_shared
        score.pop(unit.number, None)
        fit = [n for n in score if self.units[n].fusible and self.units[n].group is not None]
        fit = [n for n in fit if abs(self.units[n].due - unit.due) <= 1]  # what leaves early waits for little else
        fit.sort(key=lambda n: (-score[n], -n))
        return fit

    def _would_cycle(self, one: Unit, two: Unit) -> bool:
        """Whether some third unit must run between the two."""
        for here, end in ((one, two), (two, one)):
            bit = 1 << end.number
            for dep in {self.find(d) for d in here.deps}:
                if dep != end.number and self.units[dep].ancestors & bit:
                    return True
        return False

    def _join(self, kept: Unit, gone: Unit, group: FormedGroup) -> Unit:
        kept.group, due = group, min(kept.due, gone.due)
        kept.positions = sorted(kept.positions + gone.positions)
        self.parent[gone.number] = kept.number
        del self.units[gone.number]
        both = 1 << kept.number | 1 << gone.number
        kept.deps = {self.find(d) for d in kept.deps | gone.deps} - {kept.number}
        kept.users |= gone.users
        kept.ancestors = (kept.ancestors | gone.ancestors) & ~both
        mask = kept.ancestors | 1 << kept.number
        if kept.due != gone.due:
            self._due_with(kept, due)
        for unit in self._descendants(kept):
            unit.ancestors = unit.ancestors & ~both | mask
        return kept

    def _due_with(self, unit: Unit, due: int) -> None:
        """A unit, and with it what it needs, is due with another group than before."""
        unit.due = due
        for other in self.units.values():
            if unit.ancestors >> other.number & 1:
                other.due = min(other.due, due)

    def _descendants(self, unit: Unit) -> Iterator[Unit]:
        """Units that must run after `unit`."""
        seen = {unit.number}
        pending = list(unit.users)
        while pending:
            number = self.find(pending.pop())
            if number not in seen:
                seen.add(number)
                pending += self.units[number].users
                yield self.units[number]


def fuse(graph: Graph, buffers: Mapping[str, Buffer], forms: Forms, *, enabled: bool = True) -> list[Unit]:
    """Group the graph's nodes into units.

    Arguments:
        graph: needed nodes and their dependencies.
        buffers: of the program.
        forms: of the program's groups.
        enabled: False leaves every node alone.
    """
    fusion = Fusion(graph, buffers, forms)
    units = fusion.run(enabled)
    for unit in units:
        unit.deps = {fusion.find(d) for d in unit.deps} - {unit.number}
    return units


def order(units: Iterable[Unit]) -> list[Unit]:
    """Units in an order that respects dependencies and keeps few buffers alive.

    Program order, except that a unit that needs no other unit (masks, constants, casts of weights) runs just before
    its first user.
    """
    by_number = {unit.number: unit for unit in units}
    done: set[int] = set()
    result: list[Unit] = []

    def place(unit: Unit) -> None:
        stack = [(unit, iter(sorted(unit.deps)))]
        while stack:
            current, pending = stack[-1]
            for dep in pending:
                if dep not in done:
                    stack.append((by_number[dep], iter(sorted(by_number[dep].deps))))
                    break
            else:
                stack.pop()
                if current.number not in done:
                    done.add(current.number)
                    result.append(current)

    in_order = sorted(by_number.values(), key=lambda unit: unit.positions[-1])
    used = {dep for unit in in_order for dep in unit.deps}
    for unit in in_order:
        if (unit.deps or unit.number not in used) and unit.number not in done:
            place(unit)
    for unit in in_order:
        if unit.number not in done:
            place(unit)
    return result
