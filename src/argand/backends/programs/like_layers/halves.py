"""The forward and backward of a captured graph with many layers that are alike, from those of five of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import fx

from argand.autograd.partitioning.partition import Partition, note_kept
from argand.autograd.tracing.joint import JointProgram
from argand.backends.programs.like_layers.cutting import HEAD, TAIL
from argand.backends.programs.like_layers.five_layers import Shorter
from argand.backends.programs.like_layers.layers import Unlike, outputs_of
from argand.backends.programs.like_layers.stretching import Key, Place, Stretching
from argand.backends.programs.like_layers.whole_forward import Forward
from argand.graph.nodes.program import AtenProgram, InputSpec
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.plan import Slot


def halves_of_all(joint: JointProgram, cut: Partition, short: Shorter) -> tuple[JointProgram, Partition]:
    """The two halves of all layers, from those of five. The joint program that comes with them has a graph of five.

    Raises:
        Unlike: as `program_of_all`.
    """
    kept = outputs_of(cut.forward)[cut.results :]
    shared = len(set(kept)) < len(kept)
    unusual = (
        joint.spent,
        joint.differentiates,
        joint.passed,
        joint.counted,
        joint.tape.watched,
        cut.seeds,
        cut.passed,
        cut.opaque,
    )
    if shared or any(unusual):
        raise Unlike
    forward = Forward(cut.forward, short, joint.results)
    backward = _Backward(cut, forward)
    whole, gradients = forward.program(), backward.gradients()
    own = backward.program(whole, gradients)
    note_kept(whole, own, backward.arguments, gradients, joint.results)
    tape = joint.tape
    reached, alone = ([forward.of_all(positions) for positions in sets] for sets in (tape.reached, tape.alone))
    program = replace(
        joint.program,
        inputs=[*whole.inputs, *joint.tangents],
        num_args=whole.num_args,
        specialised=whole.specialised,
    )
    return (
        replace(
            joint,
            program=program,
            gradients=tuple(gradients),
            tape=replace(tape, reached=tuple(reached), alone=tuple(alone)),
        ),
        Partition(whole, own, backward.arguments, gradients, joint.results),
    )


@dataclass(slots=True)
class _Argument:
    """An argument of the backward of five layers; `place` is None for one of no layer."""

    place: Place | None
    slot: Slot
    spec: InputSpec
    node: fx.Node


class _Backward:
    """A backward.

    Fields:
        arguments: of all.
        slots: what the arguments of the five are among these.
    """

    def __init__(self, cut: Partition, forward: Forward) -> None:
        self.cut, self.forward = cut, forward
        self.returned = outputs_of(cut.forward)
        given = zip(cut.arguments, cut.backward.inputs, cut.backward.placeholders)
        self.five = [_Argument(self._place(slot), slot, spec, node) for slot, spec, node in given]
        places = {one.node: one.place for one in self.five if one.place is not None}
        self.stretching = Stretching(cut.backward, forward.short, places, back=True)
        self.arguments: list[Slot] = []
        self.inputs: list[InputSpec] = []
        self.slots: dict[Slot, Slot] = {}
        plain: dict[fx.Node, fx.Node] = {}
        rows: dict[tuple[Key, int], fx.Node] = {}
        for one, turn in self._in_order():
            node = self._add(one, turn)
            if one.place is None:
                plain[one.node] = node
            else:
                rows[one.place[0], turn] = node

        def given_of(key: Key, turn: int) -> fx.Node:
            if (key, turn) not in rows:
                raise Unlike
            return rows[key, turn]

        self.stretching.run(plain, given_of)

    def _place(self, slot: Slot) -> Place | None:
        forward = self.forward
        if slot.kind in ("input", "data"):
            return forward.places.get(forward.given[slot.index])
        if slot.kind == "number":
            raise Unlike
        place = forward.stretching.place(self.returned[slot.index]) if slot.kind == "output" else None
        if place is not None and slot.index < self.cut.results:
            raise Unlike
        return place

    def _in_order(self) -> Iterator[tuple[_Argument, int]]:
        """Arguments of all, each as one of the five's and the number of its layer: those that were left out come
        between their neighbours."""
        seen: set[Place] = set()
        known = {one.place for one in self.five}
        between: list[_Argument] = []
        for one in [*self.five, None]:
            begins = False
            if one is not None and one.place is not None:
                key, layer = one.place
                other = (key, 2 * HEAD - 1 - layer)
                begins = layer in (HEAD - 1, HEAD) and other not in seen
                if begins and other not in known:
                    raise Unlike
                seen.add(one.place)
            if not begins and between:
                turns = self.forward.short.left_out
                ahead = between[0].place is not None and between[0].place[1] < HEAD
                yield from ((each, turn) for turn in (turns if ahead else reversed(turns)) for each in between)
                between = []
            if one is not None:
                yield one, 0 if one.place is None else self.stretching.turn(one.place[1])
                between += [one] * begins

    def _add(self, one: _Argument, turn: int) -> fx.Node:
        """An argument of all."""
        forward = self.forward
        slot, source = one.slot, None
        if slot.kind in ("input", "data"):
            position = forward.position(slot.index) if one.place is None else forward.rows[one.place[0], turn]
            slot, source = Slot(slot.kind, position), forward.nodes[position]
        elif slot.kind == "output":
            mine = self.returned[slot.index]
            source = (
                forward.stretching.outside(mine)
                if one.place is None
                else forward.stretching.of_layer(one.place[0], turn)
            )
            slot = slot if slot.index < self.cut.results else Slot("output", forward.keep(source))
        node = self.stretching.graph.placeholder(one.node.name if source is None else source.name)
        node.meta.update(one.node.meta if source is None else source.meta)
        self.inputs.append(InputSpec(node.name, one.spec.kind, len(self.arguments), one.spec.spec))
        if one.place is None or turn not in forward.short.left_out:
            self.slots[one.slot] = slot
        self.arguments.append(slot)
        return node

    def gradients(self) -> dict[int, Slot]:
        """Where the gradients of all inputs are found."""
        forward, values = self.forward, outputs_of(self.cut.backward)
        nodes: dict[int, fx.Node | Slot] = {}
        rows: dict[Key, dict[int, fx.Node]] = {}
        for number, slot in self.cut.gradients.items():
            place = forward.places.get(forward.given[number])
            position = forward.position(number)
            if slot.kind != "value":
                if place is not None:
                    raise Unlike
                nodes[position] = self.slots[slot]
            elif place is None:
                nodes[position] = self.stretching.outside(values[slot.index])
            else:
                rows.setdefault(place[0], {})[place[1]] = values[slot.index]
        for key, of_layers in rows.items():
            if not of_layers.keys() >= set(range(HEAD + TAIL)):
                raise Unlike
            for layer, node in of_layers.items():
                nodes[forward.rows[key, self.stretching.turn(layer)]] = self.stretching.for_layer(node, layer)
            first, second = (self.stretching.key(of_layers[layer], layer) for layer in (HEAD - 1, HEAD))
            if first is None or first != second:
                raise Unlike
            for turn in forward.short.left_out:
                nodes[forward.rows[key, turn]] = self.stretching.of_layer(first, turn)
        self.outputs: dict[fx.Node, int] = {}
        return {
            position: at if isinstance(at, Slot) else Slot("value", self.outputs.setdefault(at, len(self.outputs)))
            for position, at in sorted(nodes.items(), key=lambda item: item[0])
        }

    def program(self, whole: AtenProgram, gradients: Any) -> AtenProgram:
        """The backward of all."""
        graph = self.stretching.graph
        graph.output(tuple(self.outputs)).meta["val"] = tuple([node.meta["val"] for node in self.outputs])
        layers = self.stretching.run_of_all()
        return replace(self.cut.backward, graph=graph, inputs=self.inputs, num_args=len(self.inputs), layers=layers)
