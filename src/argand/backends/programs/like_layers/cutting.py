"""The program with five of its layers: three in the beginning and two in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import fx

from argand.backends.programs.like_layers.layers import Layers, find_layers, outputs_of
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
    layers = find_layers(program)
    return None if layers is None else _Cutting(program, layers).run()


class _Cutting:
    def __init__(self, program: AtenProgram, layers: Layers) -> None:
        self.program = program
        self.layers = layers
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        end = layers.count - TAIL
        self.first, self.last = layers.first(HEAD), layers.first(end)  # of what is left out
        self.gone = set(layers.calls[self.first : self.last])
        given = {node for layer in layers.given[HEAD:end] for node in layer}
        self.gone.update(node for node in given if all(user in self.gone for user in node.users))
        self.lost: fx.Node | None = None
        self.moved = False

    def run(self) -> Cut | None:
        number = self.layers.number
        for given in self.layers.given[:HEAD]:
            if any(number.get(user, self.last) >= self.last for node in given for user in node.users):
                return None  # the last layers' parts have to tell whose inputs they read
        rewired = []
        for node in self.program.graph.nodes:
            if node.op == "output" or node in self.gone:
                continue
            self.moved = False
            self.env[node] = compat.copy_node(self.graph, node, self._argument)
            if self.lost is not None or self.env[node].name != node.name:
                return None
            if self.moved:
                rewired.append(node.name)
        results = outputs_of(self.program)
        places = [number for number, node in enumerate(results) if node not in self.gone]
        kept = [self.env[node] if isinstance(node, fx.Node) else node for node in (results[at] for at in places)]
        self.graph.output(tuple(kept))
        less = self._program(places)
        return None if less is None else Cut(self.program, less, self.layers, places, frozenset(rewired))

    def _argument(self, node: fx.Node) -> fx.Node:
        """What stands for an argument: what the last layer of the head left, for what the last one left out did."""
        copy = self.env.get(node)
        if copy is not None:
            return copy
        number = self.layers.number.get(node, -1)
        if number < self.last - self.layers.length:
            self.lost = node
            return next(iter(self.env.values()))
        self.moved = True
        return self.env[self.layers.calls[number - (self.last - self.first)]]

    def _program(self, places: list[int]) -> AtenProgram | None:
        program = self.program
        nodes = program.placeholders
        inputs = [number for number, node in enumerate(nodes) if node not in self.gone]
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
            graph=self.graph,
            inputs=[program.inputs[number] for number in inputs],
            outputs=[OutputSpec("value", new_place[place]) for place in places if place in handed],
            mutations=mutations,
            kept=frozenset(),
            taken=frozenset(),
            leaves=[],
        )
