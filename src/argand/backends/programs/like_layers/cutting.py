"""The program with five of its layers: three in the beginning and two in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import fx

from argand.backends.programs.like_layers.layers import Layers, find_layers, known_layers, outputs_of
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram, MutationSpec, OutputSpec
from argand.quick_dataclasses import dataclass

HEAD: Final = 3
TAIL: Final = 2


@dataclass(slots=True)
class Cut:
    """A program without most of its layers.

    Arguments:
        whole: the program that came.
        program: the one that is left.
        layers: of the whole.
        places: for each result of `program`, its position among those of the whole.
        rewired: names of nodes that read what another layer left than in the whole program.
    """

    whole: AtenProgram
    program: AtenProgram
    layers: Layers
    places: list[int]
    rewired: frozenset[str]

    @property
    def left_out(self) -> range:
        """The layers of the whole that `program` does not have."""
        return range(HEAD, self.layers.count - TAIL)


def cut_layers(program: AtenProgram) -> Cut | None:
    """A program with fewer layers; None where there are few, or something reads what one of the middle left."""
    layers = find_layers(program) if program.layers is None else known_layers(program)
    if layers is None:
        return None
    cutting = Cutting(program.graph, layers)
    if not cutting.run():
        return None
    results = outputs_of(program)
    places = [number for number, node in enumerate(results) if node not in cutting.gone]
    kept = [cutting.env[node] if isinstance(node, fx.Node) else node for node in (results[at] for at in places)]
    cutting.graph.output(tuple(kept))
    less = _program(program, cutting, places)
    return None if less is None else Cut(program, less, layers, places, frozenset(cutting.rewired))


class Cutting:
    """A graph with fewer layers, without its results.

    Fields:
        first, last: positions of the first call that is left out, and of the first one behind.
        turn: (row, place in it) of inputs and constants of layers.
        env: what became of the nodes.
        rewired: names of nodes that read what another layer left.
    """

    def __init__(self, whole: fx.Graph, layers: Layers) -> None:
        self.whole = whole
        self.layers = layers
        self.graph = fx.Graph()
        self.rewired: list[str] = []
        self.env: dict[fx.Node, fx.Node] = {}
        end = layers.count - TAIL
        self.first, self.last = layers.first(HEAD), layers.first(end)
        self.gone = set(layers.calls[self.first : self.last])
        self.turn = {node: (row, turn) for row, nodes in enumerate(layers.given) for turn, node in enumerate(nodes)}
        given = [node for nodes in layers.given for node in nodes[HEAD:end]]
        self.gone.update(node for node in given if all(map(self._does_without, node.users)))
        self.lost: fx.Node | None = None
        self.reader = -1
        self.moved = False

    def _does_without(self, user: fx.Node) -> bool:
        """Whether a call is left out, or reads what is another layer's then."""
        number = self.layers.number.get(user, -1)
        return user in self.gone or self._is_in_tail(number) or self.layers.begin <= number < self.first

    def _is_in_tail(self, number: int) -> bool:
        return self.last <= number < self.layers.first(self.layers.count)

    def run(self) -> bool:
        """Copy what is left; whether nothing of it reads what one of the middle left."""
        return all(node.op == "output" or node in self.gone or self._copy(node) for node in self.whole.nodes)

    def _copy(self, node: fx.Node) -> bool:
        self.moved = False
        self.reader = self.layers.number.get(node, -1)
        self.env[node] = compat.copy_node(self.graph, node, self.argument)
        if self.moved:
            self.rewired.append(node.name)
        return self.lost is None and self.env[node].name == node.name

    def argument(self, node: fx.Node) -> fx.Node:
        """What stands for an argument: what the last layer of the head left, for what the last one left out did."""
        layers = self.layers
        number = layers.number.get(node, -1)
        given = self._given(node) if node in self.turn else node
        if given is None:
            return self._lose(node)
        lost = self.last - layers.length * self._is_in_tail(self.reader)
        if self.reader >= self.last and layers.begin <= number < lost:
            return self._lose(node)
        copy = self.env.get(given)
        if copy is not None:
            return copy
        if given is not node:
            return self._lose(node)  # it comes later
        self.moved = True
        return self.env[layers.calls[number - (self.last - self.first)]]

    def _given(self, node: fx.Node) -> fx.Node | None:
        """What stands for an input or constant of layers: what a layer reads that is its neighbour's is left."""
        row, turn = self.turn[node]
        gap, end = self.layers.count - TAIL - HEAD, self.layers.count - TAIL
        if self._is_in_tail(self.reader) and turn < end:
            turn -= gap
        elif self.layers.begin <= self.reader < self.first and turn >= HEAD:
            turn += gap
        else:
            return node
        self.moved = True
        return self.layers.given[row][turn] if 0 <= turn < len(self.layers.given[row]) else None

    def _lose(self, node: fx.Node) -> fx.Node:
        """Give up: `node` is of a layer that nothing stands for."""
        self.lost = node
        return next(iter(self.env.values()))


def _program(program: AtenProgram, cutting: Cutting, places: list[int]) -> AtenProgram | None:
    nodes = program.placeholders
    inputs = [number for number, node in enumerate(nodes) if node not in cutting.gone]
    new_input = {old: new for new, old in enumerate(inputs)}
    new_place = {old: new for new, old in enumerate(places)}
    mutations = []
    for mutation in program.mutations:
        if mutation.output not in new_place:
            continue
        if mutation.input not in new_input:
            return None
        mutations.append(MutationSpec(new_input[mutation.input], new_place[mutation.output]))
    handed = program.handed_over
    return replace(
        program,
        graph=cutting.graph,
        inputs=[program.inputs[number] for number in inputs],
        outputs=[OutputSpec("value", new_place[place]) for place in places if place in handed],
        mutations=mutations,
        kept=frozenset(),
        taken=frozenset(),
        leaves=[],
    )
