"""Finds, in the order of a graph's nodes, runs that do the same again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import is_impure

aten = torch.ops.aten

LEAST = 96  # rounds of a loop that is worth it: calls of fewer take longer than unrolled
_MOST = 64  # nodes of a round


@dataclass(frozen=True, slots=True)
class Over:
    """A slice `source.select(dim, first + round * step)`, at a place of the round."""

    source: fx.Node
    dim: int
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Rounds of nodes, each a place for place copy of the one before.

    Arguments:
        rounds: the nodes of each, in order.
        over: places that are slices.
        carried: places whose results the next round reads, with what the first round reads instead.
        seen: places whose results are read after the loop.
    """

    rounds: Sequence[Sequence[fx.Node]]
    over: dict[int, Over]
    carried: dict[int, fx.Node]
    seen: frozenset[int]


def find_loop(graph: fx.Graph) -> Loop | None:
    """The longest loop of a graph, by its rounds; None where there is none."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    if len(nodes) < LEAST * 2:
        return None
    place = {node: number for number, node in enumerate(nodes)}
    best: Loop | None = None
    for first, period, count in _progressions(nodes, place):
        if best is not None and count <= len(best.rounds):
            continue
        loop = _Checked(nodes, place, first, period, count).loop()
        if loop is not None and (best is None or len(loop.rounds) > len(best.rounds)):
            best = loop
    return best


def _progressions(nodes: Sequence[fx.Node], place: dict[fx.Node, int]) -> list[tuple[int, int, int]]:
    """Slices of one tensor at even distances: the first one's place, the distance, and how many."""
    groups: dict[tuple[fx.Node, int], list[fx.Node]] = defaultdict(list)
    for node in nodes:
        if _is_slice(node):
            group = groups[node.args[0], node.args[1]]
            if not group or group[-1].args[2] != node.args[2]:  # a round may read a slice twice
                group.append(node)
    progressions = []
    for group in groups.values():
        start = 0
        for end in range(1, len(group) + 1):
            period = place[group[start + 1]] - place[group[start]] if start + 1 < len(group) else 0
            if end < len(group) and place[group[end]] - place[group[end - 1]] == period:
                continue
            if end - start >= LEAST and period <= _MOST:
                progressions.append((place[group[start]], period, end - start))
            start = end - 1 if end < len(group) and end - 1 > start else end
    return sorted(progressions, key=lambda each: -each[2])


def _is_slice(node: fx.Node) -> bool:
    args = node.args
    return node.target is aten.select.int and isinstance(args[0], fx.Node) and type(args[1]) is type(args[2]) is int


class _Checked:
    """Whether rounds of `period` nodes from `first` on do the same."""

    def __init__(
        self, nodes: Sequence[fx.Node], place: dict[fx.Node, int], first: int, period: int, count: int
    ) -> None:
        self.nodes, self.place, self.first, self.period = nodes, place, first, period
        self.count = min(count, (len(nodes) - first) // period)
        self.over: dict[int, Over] = {}
        self.carried: dict[int, fx.Node] = {}

    def loop(self) -> Loop | None:
        if self.count < LEAST:
            return None
        same = 2
        if not all(self._is_step(offset) for offset in range(self.period)):
            return None
        second = [self._reads(1, offset) for offset in range(self.period)]
        if not self._begins(second):
            return None
        while same < self.count and all(self._continues(same, offset, second[offset]) for offset in range(self.period)):
            same += 1
        if same < LEAST:
            return None
        rounds = [[self._at(number, offset) for offset in range(self.period)] for number in range(same)]
        inside = {node for each in rounds for node in each}
        seen = {
            offset
            for each in rounds
            for offset, node in enumerate(each)
            if offset not in self.over and any(user not in inside for user in node.users)
        }
        return Loop(rounds, self.over, self.carried, frozenset(seen))

    def _at(self, number: int, offset: int) -> fx.Node:
        return self.nodes[self.first + number * self.period + offset]

    def _is_step(self, offset: int) -> bool:
        """Whether a place may be in a loop at all; notes slices that advance."""
        node, following = self._at(0, offset), self._at(1, offset)
        if is_impure(node) or not _has_tensors(node):
            return False
        if _is_slice(node) and _is_slice(following) and node.args[2] != following.args[2]:
            source: Any = node.args[0]
            begin, after = int(node.args[2]), int(following.args[2])
            if begin < 0 or after < 0 or self.place.get(source, -1) >= self.first:
                return False
            self.over[offset] = Over(source, int(node.args[1]), begin, after - begin)
        return True

    def _reads(self, number: int, offset: int) -> tuple[Any, ...]:
        """What a node does and reads, in words that are the same in all rounds."""
        node = self._at(number, offset)
        over = self.over.get(offset)
        if over is not None:
            if not _is_slice(node) or node.args != (over.source, over.dim, over.first + number * over.step):
                return ("another slice", number)
            return ("slice", *_meta(node))
        args = fx.map_arg((node.args, node.kwargs), lambda read: _Read(self._relation(number, read)))
        return (node.target, _frozen(args), *_meta(node))

    def _relation(self, number: int, read: fx.Node) -> tuple[str, Any]:
        where = self.place.get(read, -1) - self.first
        if where < 0:
            return ("outside", read)
        which, offset = divmod(where, self.period)
        if which == number:
            return ("here", offset)
        return ("before", offset) if which == number - 1 else ("elsewhere", read)

    def _continues(self, number: int, offset: int, second: tuple[Any, ...]) -> bool:
        node = self._at(number, offset)
        return not is_impure(node) and _has_tensors(node) and self._reads(number, offset) == second

    def _begins(self, second: Sequence[tuple[Any, ...]]) -> bool:
        """Whether the first round does what the second does, to other tensors where that reads results of the first."""
        for offset in range(self.period):
            if offset in self.over:
                if self._reads(0, offset) != second[offset] or second[offset][0] != "slice":
                    return False
                continue
            one, two = self._at(0, offset), self._at(1, offset)
            first: list[fx.Node] = []
            fx.map_arg((one.args, one.kwargs), first.append)
            reads: list[fx.Node] = []
            fx.map_arg((two.args, two.kwargs), reads.append)
            if len(first) != len(reads) or not all(map(self._may_begin, first, reads)):
                return False
            blank = (fx.map_arg((each.args, each.kwargs), lambda read: _Read(("a tensor", 0))) for each in (one, two))
            if one.target is not two.target or len({_frozen(each) for each in blank}) != 1:
                return False
            if _meta(one) != _meta(two):
                return False
        return True

    def _may_begin(self, first: fx.Node, second: fx.Node) -> bool:
        kind, offset = self._relation(1, second)
        if kind == "before":
            if offset in self.over or self._relation(0, first)[0] != "outside" or _values(first) != _values(second):
                return False
            return self.carried.setdefault(offset, first) is first
        return kind != "elsewhere" and self._relation(0, first) == (kind, offset)


@dataclass(frozen=True, slots=True)
class _Read:
    """Stands for a node in arguments."""

    what: tuple[str, Any]


def _frozen(value: Any) -> Any:
    """Hashable, and 1 is not True nor 1.0."""
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(each)) for key, each in value.items())
    return value if isinstance(value, _Read) else (type(value), repr(value))


def _values(node: fx.Node) -> tuple[Any, ...]:
    """What a result is like, wherever it lies."""
    val = node.meta.get("val")
    return (val.shape, val.dtype, node.meta.get("device")) if isinstance(val, torch.Tensor) else (node,)


def _has_tensors(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return all(isinstance(each, torch.Tensor) for each in (val if isinstance(val, (tuple, list)) else [val]))


def _meta(node: fx.Node) -> tuple[Any, ...]:
    """What a result is like; of what is no tensor only that of the node itself."""
    if "device" not in node.meta or not _has_tensors(node):
        return (node,)
    val = node.meta["val"]
    each = val if isinstance(val, (tuple, list)) else [val]
    return (type(val), node.meta["device"], *((one.shape, one.stride(), one.dtype) for one in each))
