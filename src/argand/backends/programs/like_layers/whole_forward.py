"""The program of a captured graph with many layers that are alike, or its forward, from that of five of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from torch import fx

from argand.autograd.tracing.trace import trace_inference
from argand.backends.programs.like_layers.cutting import HEAD, TAIL
from argand.backends.programs.like_layers.five_layers import Shorter, shorter
from argand.backends.programs.like_layers.layers import Unlike, outputs_of
from argand.backends.programs.like_layers.stretching import Key, Place, Stretching
from argand.errors import AutogradError
from argand.graph.nodes.program import AtenProgram, InputSpec
from argand.graph.origin import NodeOrigin

_WORTH: Final = 12
"""Layers that are left out, from which tracing five takes less time: for training, fewer are."""


def traced_by_layers(
    gm: fx.GraphModule, example_inputs: Sequence[Any], rewrite: Callable[[AtenProgram], AtenProgram]
) -> AtenProgram | None:
    """As `trace_inference`, for a graph with many layers that are alike, of which five are traced; None for others.

    Arguments:
        rewrite: what is done to the program of five layers first.
    """
    short = shorter(gm, example_inputs)
    if short is not None and short.gap >= _WORTH:
        with contextlib.suppress(AutogradError, Unlike):
            return program_of_all(rewrite(trace_inference(short.gm, short.inputs, bases=True)), short)
    return None


def program_of_all(program: AtenProgram, short: Shorter) -> AtenProgram:
    """The program of all layers, from that of five.

    Raises:
        Unlike: layers differ in what they become, or the graph does what is not looked into here.
    """
    return Forward(program, short, len(outputs_of(program))).program()


class Forward:
    """A forward, or a program without gradients.

    Fields:
        places: of inputs of layers.
        rows: for an input of a layer, and the layer's number among all, its position.
        plain: what inputs of no layer are in the graph of all.
        outputs, number: what the graph of all returns, and where.
    """

    def __init__(self, program: AtenProgram, short: Shorter, results: int) -> None:
        if program.mutations or program.bases or program.leaves or program.scalars or program.conditions:
            raise Unlike
        self.five, self.short = program, short
        self.given = program.placeholders
        row_of: dict[int, tuple[Key, int]] = {
            place: (("input", row), turn) for row, places in enumerate(short.rows) for turn, place in enumerate(places)
        }
        self.places: dict[fx.Node, Place] = {}
        for spec, node in zip(program.inputs, self.given):
            key, turn = row_of.get(short.places[spec.index], (None, 0)) if spec.kind == "arg" else (None, 0)
            if key is not None:
                self.places[node] = key, turn if turn < HEAD else turn - short.gap
        self.stretching = Stretching(program, short, self.places, back=False)
        self.inputs: list[InputSpec] = []
        self.nodes: list[fx.Node] = []
        self.plain: dict[fx.Node, int] = {}
        self._add_inputs(row_of)
        at = {spec.index: position for position, spec in enumerate(self.inputs) if spec.kind == "arg"}
        self.rows = {key_and_turn: at[place] for place, key_and_turn in row_of.items()}
        inputs = {node: self.nodes[position] for node, position in self.plain.items()}
        self.stretching.run(inputs, self._input_of)
        returned = outputs_of(program)
        if not all(isinstance(node, fx.Node) for node in returned):
            raise Unlike
        self.outputs = [self.stretching.outside(node) for node in returned[:results]]
        self.number = {node: number for number, node in reversed([*enumerate(self.outputs)])}

    def _add_inputs(self, row_of: dict[int, tuple[Key, int]]) -> None:
        """Placeholders in the order that a trace of all makes them in."""
        short = self.short
        given = [
            (short.places[spec.index], spec, node)
            for spec, node in zip(self.five.inputs, self.given)
            if spec.kind == "arg"
        ]
        like = {place: (spec, node) for place, spec, node in given}
        for row in short.rows:
            given += [(row[turn], *like[row[HEAD - 1]]) for turn in short.left_out]
        for place, spec, node in sorted(given, key=lambda each: each[0]):
            position = self._add(replace(spec, index=place, name=f"arg{place}_1"), node)
            if node not in self.places:
                self.plain[node] = position
        for spec, node in zip(self.five.inputs, self.given):
            if spec.kind != "arg":
                self.plain[node] = self._add(spec, node)

    def _add(self, spec: InputSpec, like: fx.Node) -> int:
        node = self.stretching.graph.placeholder(spec.name)
        node.meta.update(like.meta)
        node.meta["origin"] = NodeOrigin(spec.name)
        self.inputs.append(replace(spec, name=node.name))
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _input_of(self, key: Key, turn: int) -> fx.Node:
        """An input of a layer of all."""
        if (key, turn) not in self.rows:
            raise Unlike
        return self.nodes[self.rows[key, turn]]

    def position(self, number: int) -> int:
        """For an input of the five layers' program, its position among those of all."""
        node = self.given[number]
        if node in self.plain:
            return self.plain[node]
        key, layer = self.places[node]
        return self.rows[key, self.stretching.turn(layer)]

    def of_all(self, numbers: Iterable[int]) -> frozenset[int]:
        """Positions of such inputs, and of those that stand for them in the layers that are left out."""
        positions: set[int] = set()
        layers: dict[Key, set[int]] = {}
        for number in numbers:
            positions.add(self.position(number))
            if (place := self.places.get(self.given[number])) is not None:
                layers.setdefault(place[0], set()).add(place[1])
        for key, present in layers.items():
            if not present.issuperset(range(HEAD + TAIL)):
                raise Unlike
            positions.update(self.rows[key, turn] for turn in self.short.left_out)
        return frozenset(positions)

    def keep(self, node: fx.Node) -> int:
        """Return a value, too; its position."""
        if node not in self.number:
            self.number[node] = len(self.outputs)
            self.outputs.append(node)
        return self.number[node]

    def program(self) -> AtenProgram:
        """The program of all, when all that it returns is known."""
        five, graph = self.five, self.stretching.graph
        graph.output(tuple(self.outputs)).meta["val"] = tuple([node.meta["val"] for node in self.outputs])
        outputs = [
            replace(spec, index=self.position(spec.index)) if "input" in spec.kind else spec for spec in five.outputs
        ]
        values = self.short.values
        return replace(
            five,
            graph=graph,
            layers=self.stretching.run_of_all(),
            inputs=self.inputs,
            outputs=outputs,
            num_args=len(values),
            specialised={self.short.places[number]: value for number, value in five.specialised.items()},
        )
