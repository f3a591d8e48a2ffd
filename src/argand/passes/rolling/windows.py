"""Finds, in the order of a graph's nodes, runs that do the same again and again."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import is_impure
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

LEAST = 96  # rounds of a loop that is worth it: calls of fewer take longer than unrolled
LEAST_WITH_PRODUCTS = 12  # what surrounds a product is a kernel of its own anyway
MOST_ELEMENTS = 1 << 15  # of a result of a round: larger ones leave the caches between two rounds
MOST_ELEMENTS_WITH_PRODUCTS = 1 << 20
_MOST = 384  # nodes of a round
_STARTS = 3  # rounds that may differ before those that are alike
_ROUNDS = 16  # of a short period that may be one of a longer one
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@dataclass(frozen=True, slots=True)
class Over:
    """A slice `source.select(dim, first + round * step)`, or one of `size` elements from there on, at a place of the
    round."""

    source: fx.Node
    dim: int
    first: int
    step: int
    size: int | None

    def args(self, number: int) -> tuple[Any, ...]:
        """The arguments of a round's node."""
        begin = self.first + number * self.step
        end = () if self.size is None else (begin + self.size,)
        return (self.source, self.dim, begin, *end)


@dataclass(frozen=True, slots=True)
class Loop:
    """Rounds of nodes, each a place for place copy of the one before.

    Arguments:
        rounds: the nodes of each, in order.
        over: places that are slices.
        carried: places whose results the next round reads, with what the first round reads instead.
        seen: places whose results are read after the loop; whether only the last round's are.
    """

    rounds: Sequence[Sequence[fx.Node]]
    over: dict[int, Over]
    carried: dict[int, fx.Node]
    seen: dict[int, bool]

    @property
    def nodes(self) -> set[fx.Node]:
        """The nodes of all rounds."""
        return {node for each in self.rounds for node in each}

    @property
    def has_products(self) -> bool:
        """Whether a round multiplies matrices."""
        return any(map(is_product, self.rounds[0]))


def is_product(node: fx.Node) -> bool:
    """Whether a node multiplies matrices."""
    return node.target in _PRODUCTS


def find_loop(graph: fx.Graph, known: Container[fx.Node] = ()) -> Loop | None:
    """The loop of a graph that holds most nodes; None where there is none.

    Arguments:
        known: nodes that are looked past: of loops that stay in the graph, where others are only to be known.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function" and node not in known]
    if len(nodes) < LEAST_WITH_PRODUCTS * 2:
        return None
    place = {node: number for number, node in enumerate(nodes)}
    for first, period, count in _repetitions(nodes):
        for start in _starts(nodes, place, first, period):
            loop = _Checked(nodes, place, start, period, count - (start - first) // period).loop()
            if loop is not None:
                return loop
    return None


def _repetitions(nodes: Sequence[fx.Node]) -> list[tuple[int, int, int]]:
    """Runs of nodes that repeat what is done to tensors of which sizes: the first one's place, the distance after which
    they do, and how often. The longest come first, each before those of a multiple of its distance."""
    numbers: dict[Any, int] = {}
    kinds = torch.tensor([numbers.setdefault(_kind(node), len(numbers)) for node in nodes])
    groups: list[list[tuple[int, int, int]]] = []
    for period in range(1, min(_MOST, len(nodes) // LEAST_WITH_PRODUCTS) + 1):
        differ = (kinds[period:] != kinds[:-period]).nonzero().flatten()
        ends = torch.cat([differ.new_tensor([-1]), differ, differ.new_tensor([len(nodes) - period])])
        lengths = ends[1:] - ends[:-1] - 1
        for number in (lengths >= (LEAST_WITH_PRODUCTS - 1) * period).nonzero().flatten().tolist():
            run = int(ends[number]) + 1, period, int(lengths[number]) // period + 1
            group = next((each for each in groups if _within(run, each[0])), None)
            if group is None:
                groups.append([run])
            elif period <= _ROUNDS * group[0][1]:
                group.append(run)
    groups.sort(key=lambda group: -group[0][1] * group[0][2])
    return [run for group in groups for run in group]


def _within(run: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether several rounds of another run are a round of this one."""
    (begin, period, count), (first, distance, often) = run, other
    return period % distance == 0 and first <= begin and begin + count * period <= first + (often + 1) * distance


def _kind(node: fx.Node) -> tuple[Any, ...]:
    val = node.meta.get("val")
    return (node.target, val.shape, val.dtype) if isinstance(val, torch.Tensor) else (node.target, type(val))


def _starts(nodes: Sequence[fx.Node], place: dict[fx.Node, int], first: int, period: int) -> Iterator[int]:
    """Where the first of a run's rounds may begin, those first where least is handed from one to the next."""
    crossing = [0] * (2 * period + 1)  # by offset: what it begins or ceases to be handed on there
    for offset, node in enumerate(nodes[first + period : first + 2 * period]):
        last = max((place.get(user, -1) for user in node.users), default=-1) - first - period
        weight = period if is_slice(node) and place.get(node.all_input_nodes[0], -1) < first else 1
        crossing[offset + 1] += weight
        crossing[min(max(last, offset) + 1, 2 * period)] -= weight
    handed, total = [0] * period, 0
    for offset, change in enumerate(crossing[:-1]):
        total += change
        handed[offset % period] += total
    best = sorted(range(period), key=lambda offset: (handed[offset], offset))
    for number in range(_STARTS):
        yield from (first + number * period + offset for offset in best[:4])


def is_slice(node: fx.Node) -> bool:
    """Whether a node reads an element, or some that follow each other, of a dimension."""
    args = node.args
    count = {aten.select.int: 3, aten.slice.Tensor: 4}.get(node.target)
    return len(args) == count and isinstance(args[0], fx.Node) and all(type(arg) is int for arg in args[1:])


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
        if self.count < LEAST_WITH_PRODUCTS:
            return None
        same = 2
        if not all(self._is_step(offset) for offset in range(self.period)):
            return None
        second = [self._reads(1, offset) for offset in range(self.period)]
        if not self._begins(second):
            return None
        while same < self.count and all(self._continues(same, offset, second[offset]) for offset in range(self.period)):
            same += 1
        rounds = [[self._at(number, offset) for offset in range(self.period)] for number in range(same)]
        loop = Loop(rounds, self.over, self.carried, self._seen(rounds))
        enough = same >= (LEAST_WITH_PRODUCTS if loop.has_products else LEAST)
        return loop if enough and loop.over.keys() != set(range(self.period)) else None

    def _seen(self, rounds: Sequence[Sequence[fx.Node]]) -> dict[int, bool]:
        inside = {node for each in rounds for node in each}
        seen: dict[int, bool] = {}
        for each in rounds:
            for offset, node in enumerate(each):
                if offset not in self.over and any(user not in inside for user in node.users):
                    seen[offset] = each is rounds[-1] and offset not in seen
        return seen

    def _at(self, number: int, offset: int) -> fx.Node:
        return self.nodes[self.first + number * self.period + offset]

    def _is_step(self, offset: int) -> bool:
        """Whether a place may be in a loop at all; notes slices that advance."""
        node, following = self._at(0, offset), self._at(1, offset)
        if is_impure(node) or not _has_tensors(node):
            return False
        if is_slice(node) and is_slice(following) and node.args[2] != following.args[2]:
            source: Any = node.args[0]
            dim, begin, after = int(node.args[1]), int(node.args[2]), int(following.args[2])
            size = None if node.target is aten.select.int else int(node.args[3]) - begin
            if begin < 0 or after < 0 or self.place.get(source, -1) >= self.first:
                return False
            if size is not None and not 0 < size == node.meta["val"].shape[dim]:
                return False
            self.over[offset] = Over(source, dim, begin, after - begin, size)
        return True

    def _reads(self, number: int, offset: int) -> tuple[Any, ...]:
        """What a node does and reads, in words that are the same in all rounds."""
        node = self._at(number, offset)
        over = self.over.get(offset)
        if over is not None:
            if node.target is not self._at(0, offset).target or node.args != over.args(number):
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
