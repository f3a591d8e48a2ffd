"""Finds layers: runs of nodes that do the same, one after the other, to parameters of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.symbolic import is_tensor
from argand.quick_dataclasses import dataclass

LEAST: Final = 7
"""Layers: five are lowered."""
_SHORTEST: Final = 4
"""Nodes of a layer."""
_RARE: Final = 3
"""Targets that tell how long a layer is: those that are called least often."""
_TIMES: Final = 8
"""That such a target is called in a layer."""
_PLAIN: Final = frozenset((
    bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip


class Unlike(Exception):
    """Layers that do not become what the layer before does, under other names."""


NodesAlike = Callable[[fx.Node, fx.Node], bool]


@dataclass(slots=True)
class Layers:
    """Where layers are.

    Arguments:
        calls: all calls of the graph, in order.
        begin: position of the first node of the first layer.
        length: nodes of a layer.
        count: of layers.
        given: inputs and constants that calls of the first layer read, each with those that stand for it in the layers
            behind. What a layer reads may be another's, too: there can be more of them than layers.
        number: of the call, by node.
    """

    calls: Sequence[fx.Node]
    begin: int
    length: int
    count: int
    given: list[list[fx.Node]]
    number: Mapping[fx.Node, int]

    def first(self, layer: int) -> int:
        """The position of a layer's first node."""
        return self.begin + layer * self.length

    def place(self, node: fx.Node) -> tuple[int, int] | None:
        """Layer and position in it of a call; None for one outside of them."""
        number = self.number.get(node)
        if number is None or not self.begin <= number < self.first(self.count):
            return None
        return divmod(number - self.begin, self.length)


def find_layers(program: AtenProgram, least: int = LEAST) -> Layers | None:
    """The longest run of layers; None where there are fewer than `least`."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return longest_run(calls, _marks(program), lambda one, two: _same_meta(one.meta, two.meta), least)


def known_layers(program: AtenProgram) -> Layers:
    """The layers of a program that comes with them."""
    run, nodes = program.layers, list(program.graph.nodes)
    assert run is not None
    calls = [node for node in nodes if node.op == "call_function"]
    named = {node.name: node for node in nodes if node.op == "placeholder"}
    given = [[named[name] for name in row] for row in run.given]
    number = {node: number for number, node in enumerate(calls)}
    return Layers(calls, run.begin, run.length, run.count, given, number)


def longest_run(
    calls: Sequence[fx.Node], marks: Mapping[fx.Node, list[Any]], looks_alike: NodesAlike, least: int = LEAST
) -> Layers | None:
    """As `find_layers`, of the calls of any graph.

    Arguments:
        marks: what is to be the same of calls that correspond, besides arguments.
        looks_alike: whether the values of two nodes look the same.
    """
    length = _length(calls, least)
    return None if length is None else _Comparison(calls, length, marks, looks_alike).layers(least)


def _length(calls: Sequence[fx.Node], least: int) -> int | None:
    """How many nodes a layer has, if there are some: those from one call of a rare target to the same in the next."""
    places: dict[Any, list[int]] = {}
    for number, node in enumerate(calls):
        places.setdefault(node.target, []).append(number)
    often = sorted((at for at in places.values() if len(at) >= least), key=len)
    for at in often[:_RARE]:
        for times in range(1, _TIMES):
            steps = Counter(later - earlier for earlier, later in zip(at, at[times:]))
            if not steps:
                break
            length, count = steps.most_common(1)[0]
            if length >= _SHORTEST and count >= (least - 2) * times and 3 * count >= 2 * sum(steps.values()):
                return length
    return None


class _Comparison:
    """Compares each call with the one that stands a layer's length behind it.

    Fields:
        _begin: where the run of calls begins that are alike.
        _next, _before: inputs and constants of this run, with those of the next layer in their places.
        _shared: those that all layers read.
    """

    def __init__(
        self, calls: Sequence[fx.Node], length: int, marks: Mapping[fx.Node, list[Any]], looks_alike: NodesAlike
    ) -> None:
        self.calls = calls
        self.length = length
        self.number = {node: number for number, node in enumerate(calls)}
        self.marks = marks
        self.looks_alike = looks_alike
        self._restart(0)

    def _restart(self, begin: int) -> None:
        self._begin = begin
        self._next: dict[fx.Node, fx.Node] = {}
        self._before: dict[fx.Node, fx.Node] = {}
        self._shared: set[fx.Node] = set()

    def layers(self, least: int) -> Layers | None:
        """The longest run."""
        best: tuple[int, int, dict[fx.Node, fx.Node], dict[fx.Node, fx.Node]] = (0, 0, {}, {})
        last = len(self.calls) - self.length
        for number in range(last + 1):
            if number < last and self._alike(self.calls[number], self.calls[number + self.length]):
                continue
            if number - self._begin > best[1] - best[0]:
                best = (self._begin, number, self._next, self._before)
            self._restart(number + 1)
        begin, end, after, before = best
        count = (end - begin) // self.length + 1
        if count < least:
            return None
        given = _given(after, before, count)
        layers = None if given is None else Layers(self.calls, begin, self.length, count, given, self.number)
        return layers if layers is not None and self._reaches_one_back(layers) else None

    def _reaches_one_back(self, layers: Layers) -> bool:
        """Whether the last layer, and so each, reads calls of the layer before and of none further back."""
        first = layers.first(layers.count - 2)
        own = range(layers.first(layers.count - 1), layers.first(layers.count))
        read = {arg for number in own for arg in self.calls[number].all_input_nodes}
        return not any(layers.begin <= self.number.get(node, -1) < first for node in read)

    def _alike(self, one: fx.Node, two: fx.Node) -> bool:
        return (
            one.target is two.target
            and self._same(one.args, two.args)
            and (not (one.kwargs or two.kwargs) or self._same(one.kwargs, two.kwargs))
            and self.looks_alike(one, two)
            and self._same(self.marks.get(one), self.marks.get(two))
        )

    def _same(self, one: Any, two: Any) -> bool:
        """Whether an argument of a call is that of its counterpart."""
        kind = type(one)
        if kind is not type(two):
            return False
        if kind is fx.Node:
            return self._same_nodes(one, two)
        if kind in _PLAIN:
            return bool(one == two)
        if kind is float:
            return bool(one.hex() == two.hex())
        if isinstance(one, Expr):
            return bool(one == two)
        if isinstance(one, (tuple, list)):
            return len(one) == len(two) and all(map(self._same, one, two))
        if kind is slice:
            return self._same((one.start, one.stop, one.step), (two.start, two.stop, two.step))
        if isinstance(one, dict):
            return one.keys() == two.keys() and all(self._same(value, two[name]) for name, value in one.items())
        return one is two

    def _same_nodes(self, one: fx.Node, two: fx.Node) -> bool:
        first, second = self.number.get(one), self.number.get(two)
        if one is two:
            if first is not None:
                return first < self._begin
            if one in self._next or one in self._before:
                return False
            self._shared.add(one)
            return True
        if first is not None and second is not None:
            return second - first == self.length
        if first is not second or one.op != two.op:
            return False
        if self._next.get(one, two) is not two or self._before.get(two, one) is not one:
            return False
        if one in self._shared or two in self._shared:
            return False
        if one not in self._next:
            if not self.looks_alike(one, two):
                return False
            self._next[one], self._before[two] = two, one
        return True


def _given(after: dict[fx.Node, fx.Node], before: dict[fx.Node, fx.Node], count: int) -> list[list[fx.Node]] | None:
    """Inputs and constants, each with those that stand for it in later layers; None where these are too few."""
    given = []
    for first in after:
        if first not in before:
            node: fx.Node | None = first
            row = []
            while node is not None:
                row.append(node)
                node = after.get(node)
            given.append(row)
    in_rows = sum(map(len, given)) == len({*after, *before})  # else the last layer reads what the first one does
    return given if in_rows and all(len(row) >= count for row in given) else None


def _marks(program: AtenProgram) -> dict[fx.Node, list[Any]]:
    """For each node that the program returns, how: handed to the user, and to be written to an input."""
    handed = program.handed_over
    placeholders = program.placeholders
    written = {mutation.output: placeholders[mutation.input] for mutation in program.mutations}
    marks: dict[fx.Node, list[Any]] = {}
    for position, node in enumerate(outputs_of(program)):
        if isinstance(node, fx.Node):
            marks.setdefault(node, []).append((position in handed, written.get(position)))
    return marks


def outputs_of(program: AtenProgram) -> Sequence[Any]:
    """What the graph returns."""
    returned: Any = program.output_node.args[0]
    return returned if isinstance(returned, (tuple, list)) else [returned]


def _same_meta(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two nodes' values look the same, and are on one device."""
    device, other = one.get("device"), two.get("device")
    return (device is other or device == other) and _same_values(one["val"], two["val"])


def _same_values(one: Any, two: Any) -> bool:
    if is_tensor(one):
        return one is two or (
            type(one) is type(two)
            and one.dtype is two.dtype
            and one.shape == two.shape
            and one.stride() == two.stride()
        )
    if isinstance(one, (tuple, list)):
        return type(one) is type(two) and len(one) == len(two) and all(map(_same_values, one, two))
    return type(one) is type(two) and type(one) in _PLAIN and bool(one == two)
