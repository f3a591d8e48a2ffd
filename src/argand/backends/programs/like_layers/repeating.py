"""From the schedule of five layers to that of all: copies of a layer's steps, with the names of theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx

from argand import events
from argand.backends.programs.like_layers.cutting import HEAD, TAIL, Cut
from argand.backends.programs.like_layers.forms import (
    Form,
    buffer_renamed,
    form_of,
    node_number,
    ref_renamed,
    step_renamed,
)
from argand.backends.programs.like_layers.layers import Unlike, outputs_of
from argand.ir.kernel import Schedule, Step
from argand.ir.loops import Buffer, ExternNode, Origin, TensorRef, tensor_refs
from argand.lower.driver import origin_of
from argand.schedule.access import is_empty

_BUFFER: Final = re.compile(r"buf(\d+)(\w*)")


def with_all_layers(schedule: Schedule, cut: Cut) -> Schedule:
    """The schedule of `cut.whole`, from that of `cut.program`.

    Raises:
        Unlike: layers differ in what is done for them.
    """
    return _Repeating(schedule, cut).run()


class _Repeating:
    """One run of `with_all_layers`.

    Layers that are left have the numbers 0 to 4, `_whole` says which of all they are.

    Fields:
        node_at: for a layer of the whole and a position in it, the node.
        call: (layer, position) of a call of the layers that are left, by name.
        given: (layer, row) of their inputs and constants, by the names of the buffers.
        starts: for each layer, the step that its part begins with. A part has what comes from there to the next one's,
            which may be of the layers before and behind it, too.
        shared, own: names that are the same in the parts of layers 1, 2 and 3, and those that move on.
        buffers, nodes: by how much names of buffers and of the loop program's nodes move on from layer to layer.
        untold: names of nodes of layers that were left out.
    """

    def __init__(self, schedule: Schedule, cut: Cut) -> None:
        self.schedule = schedule
        self.cut = cut
        self.layers = layers = cut.layers
        left = [*range(HEAD), *range(layers.count - TAIL, layers.count)]
        self.call = {
            layers.calls[layers.first(whole) + position].name: (layer, position)
            for layer, whole in enumerate(left)
            for position in range(layers.length)
        }
        gap, end = len(cut.left_out), layers.count - TAIL
        self.given = {
            _buffer_name(node): (turn if turn < HEAD else turn - gap, row)
            for row, nodes in enumerate(layers.given)
            for turn, node in enumerate(nodes)
            if turn < HEAD or turn >= end
        }
        self.by_name = {node.name: node for node in layers.calls if node.name in cut.rewired}
        self.shared: set[str] = set()
        self.own: set[str] = set()
        self.buffers = self.nodes = 0
        self.writers = {
            name: number for number, step in reversed([*enumerate(schedule.steps)]) for name in step.outputs if name
        }
        self.kept = dict(zip(cut.places, schedule.outputs))
        self.new_buffers: dict[str, Buffer] = {}
        self.untold: set[str] = set()

    def run(self) -> Schedule:
        schedule = self.schedule
        if schedule.mutations or any(map(is_empty, schedule.buffers.values())):
            raise Unlike
        self.starts = self._starts()
        self._compare()
        self._nothing_elsewhere()
        _, second, third, fourth, _ = self.starts
        steps: list[Step] = list(map(self._early, schedule.steps[:third]))
        aliases = self._aliases_of(steps)
        for further in range(1, self.layers.count - HEAD):
            copies = self._copies(schedule.steps[second:third], further)
            self._tell(copies)
            steps += copies
            name = self._further(further)
            aliases.update(
                {name(new): name(old) for new, old in self._aliases_of(schedule.steps[second:third]).items()}
            )
        for number, step in enumerate(schedule.steps[fourth:], fourth):
            name = self._later_of(step, number)
            steps.append(step_renamed(step, name, self._later_origin, self._all_nodes))
            aliases.update({name(new): name(old) for new, old in self._aliases_of([step]).items()})
        if len(self._aliases_of(schedule.steps)) != len(schedule.aliases):
            raise Unlike
        outputs = self._outputs()
        constants = self._constants()
        inputs = [node.name for node in self.cut.whole.placeholders]
        return replace(
            schedule,
            steps=steps,
            inputs=inputs,
            constants=constants,
            outputs=outputs,
            aliases=aliases,
            buffers=self._buffers_of(steps, inputs, constants),
        )

    @property
    def _left_out(self) -> int:
        return len(self.cut.left_out)

    @property
    def _all_nodes(self) -> int:
        return self.nodes * self._left_out

    # --- what the layers that are left have in common

    def _starts(self) -> list[int]:
        """The steps at which the parts of layers begin: they come from one call, and from it alone in each layer.

        Raises:
            Unlike: there are none with the same number of steps between them.
        """
        at: dict[int, list[list[int]]] = {}
        for number, step in enumerate(self.schedule.steps):
            for origin in dict.fromkeys(step.origins):
                place = self.call.get(origin.fx_node)
                if place is not None:
                    layer, position = place
                    at.setdefault(position, [[] for _ in range(HEAD + TAIL)])[layer].append(number)
        for steps in at.values():
            if all(len(numbers) == 1 for numbers in steps):
                starts = [number for (number,) in steps]
                _, second, third, fourth, fifth = starts
                if 0 < third - second == fourth - third == fifth - fourth and starts[0] < second:
                    return starts
        raise Unlike

    def _compare(self) -> None:
        """Find how names move on from layer to layer.

        Raises:
            Unlike: they do not, or steps differ.
        """
        _, second, third, fourth, _ = self.starts
        steps = self.schedule.steps
        for number in range(third - second):
            mine = [form_of(steps[start + number], self.schedule) for start in (second, third, fourth)]
            one, two, three = mine
            if not one.key == two.key == three.key:
                raise Unlike
            self._compare_origins(mine)
            for names in zip(one.names, two.names, three.names):
                self._compare_names(*names)
            numbers = [node_number(steps[start + number]) for start in (second, third, fourth)]
            self.nodes = self.nodes or numbers[1] - numbers[0]
            if not 0 < self.nodes == numbers[1] - numbers[0] == numbers[2] - numbers[1]:
                raise Unlike
        written = {name for step in steps[second:third] for name in (*step.outputs, *_mutated(step))}
        if not self.shared.isdisjoint(self.own) or not self.shared.isdisjoint(written) or not self.buffers:
            raise Unlike

    def _compare_origins(self, forms: Sequence[Form]) -> None:
        one, two, three = [form.origins for form in forms]
        if not len(one) == len(two) == len(three):
            raise Unlike
        for origins in zip(one, two, three):
            places = [self.call.get(origin.fx_node) for origin in origins]
            if not _moves_on(places) and not (places == [None] * 3 and origins[0] == origins[1] == origins[2]):
                raise Unlike

    def _compare_names(self, one: str, two: str, three: str) -> None:
        if one == two == three:
            if one in self.given:
                raise Unlike
            self.shared.add(one)
            return
        if not _moves_on([self.given.get(name) for name in (one, two, three)]):
            self.buffers = self.buffers or _number(two) - _number(one)
            if self.buffers <= 0 or [_moved(one, self.buffers), _moved(two, self.buffers)] != [two, three]:
                raise Unlike
        self.own.update((one, two, three))

    def _nothing_elsewhere(self) -> None:
        """Raises Unlike: of layers 1, 2 and 3 not the same is done equally far from where their parts begin."""
        _, second, third, _, _ = self.starts
        places: list[set[tuple[int, int]]] = [set() for _ in range(HEAD + TAIL)]
        for number, step in enumerate(self.schedule.steps):
            for origin in step.origins:
                if place := self.call.get(origin.fx_node):
                    places[place[0]].add((place[1], number - self.starts[place[0]]))
        length = third - second
        if not places[1] == places[2] == places[3] or any(not -length <= away < 2 * length for _, away in places[1]):
            raise Unlike

    # --- other names

    def _further(self, further: int) -> Callable[[str], str]:
        """What names of the part of layer 1 are called so many layers on."""

        def name(old: str) -> str:
            if old in self.shared:
                return old
            if old in self.given:
                layer, row = self.given[old]
                return self._given(row, layer + further)
            if old not in self.own:
                raise Unlike
            return _moved(old, further * self.buffers)

        return name

    def _copies(self, part: Sequence[Step], further: int) -> list[Step]:
        origins: dict[str, Origin] = {}

        def origin(old: Origin) -> Origin:
            copy = origins.get(old.fx_node)
            if copy is not None:
                return copy
            place = self.call.get(old.fx_node)
            if place is None:
                return old
            layer, position = place[0] + further, place[1]
            copy = origins[old.fx_node] = origin_of(self._call(layer, position))
            if layer in self.cut.left_out:
                self.untold.add(copy.fx_node)
            return copy

        name = self._further(further)
        copies = [step_renamed(step, name, origin, further * self.nodes) for step in part]
        for step in part:
            for output in step.outputs:
                if output is not None and output in self.schedule.buffers:
                    self.new_buffers[name(output)] = buffer_renamed(self.schedule.buffers[output], name(output))
        return copies

    def _early(self, step: Step) -> Step:
        """A step before the part of layer 2, reading what the whole program has there."""
        of_layers = {origin.fx_node in self.call for origin in step.origins}
        if not any(self.given.get(name, (0, 0))[0] >= HEAD for name in _read(step)):
            return step
        if of_layers == {False}:
            return step
        if False in of_layers:
            raise Unlike  # whose inputs these are cannot be told

        def name(old: str) -> str:
            layer, row = self.given.get(old, (0, 0))
            return old if layer < HEAD else self._given(row, layer)

        return step_renamed(step, name, self._own_origin, 0)

    def _later_of(self, step: Step, number: int) -> Callable[[str], str]:
        """What names of a step are called, from the part of the last layer but one on."""
        of_layers = {origin.fx_node in self.call for origin in step.origins}
        compared = number < self.starts[4]

        def name(old: str) -> str:
            layer, row = self.given.get(old, (HEAD, 0))
            if layer < HEAD and True in of_layers:
                if False in of_layers:
                    raise Unlike  # whose inputs these are cannot be told
                return self._given(row, layer + self._left_out)
            return self._moved_on(old) if compared and old in self.own and layer >= HEAD else self._later(old)

        return name

    def _given(self, row: int, turn: int) -> str:
        nodes = self.layers.given[row]
        if turn >= len(nodes):
            raise Unlike
        return _buffer_name(nodes[turn])

    def _later(self, old: str) -> str:
        """What a name is called behind the parts of layers: what was made before is of no layer."""
        if old in self.shared or old in self.given:
            return old
        writer = self.writers.get(old)
        if writer is None and _BUFFER.fullmatch(old) is None:
            return old  # an input or a constant; what no step makes is inside of a kernel
        if writer is None or writer >= self.starts[2]:
            return self._moved_on(old)
        if any(origin.fx_node in self.call for origin in self.schedule.steps[writer].origins):
            raise Unlike  # of one of the first layers, or of one in the middle
        return old

    def _moved_on(self, old: str) -> str:
        if old in self.given:
            return old
        new = _moved(old, self._left_out * self.buffers)
        if old in self.schedule.buffers:
            self.new_buffers[new] = buffer_renamed(self.schedule.buffers[old], new)
        return new

    def _later_origin(self, old: Origin) -> Origin:
        place = self.call.get(old.fx_node)
        if place is not None and place[0] < HEAD:
            return origin_of(self._call(place[0] + self._left_out, place[1]))
        return self._own_origin(old)

    def _own_origin(self, old: Origin) -> Origin:
        return origin_of(self.by_name[old.fx_node]) if old.fx_node in self.cut.rewired else old

    def _call(self, layer: int, position: int) -> fx.Node:
        return self.layers.calls[self.layers.first(layer) + position]

    # --- what else a schedule has

    def _aliases_of(self, steps: Sequence[Step]) -> dict[str, str]:
        aliases = self.schedule.aliases
        return {name: aliases[name] for step in steps for name in step.outputs if name is not None and name in aliases}

    def _tell(self, copies: Sequence[Step]) -> None:
        """Say what lowering would have said of layers that were left out."""
        for step in copies:
            if isinstance(step, ExternNode) and step.reason:
                reason, node = step.reason, step.origins[0].fx_node if step.origins else ""
                if node not in self.untold:
                    continue
                events.emit("fallback", "lower", reason, op=str(step.target), node=node, reason=reason)

    def _outputs(self) -> list[Any]:
        """Where the results of the whole are."""
        positions: dict[fx.Node, list[int]] = {}
        results = outputs_of(self.cut.whole)
        for number, node in enumerate(results):
            if isinstance(node, fx.Node):
                positions.setdefault(node, []).append(number)
        return [self._output(number, node, positions) for number, node in enumerate(results)]

    def _output(self, number: int, node: Any, positions: dict[fx.Node, list[int]]) -> Any:
        place = self.layers.place(node) if isinstance(node, fx.Node) else None
        if place is None or place[0] not in self.cut.left_out:
            if number not in self.kept:
                raise Unlike
            ref = self.kept[number]
            if not isinstance(ref, TensorRef):
                return ref
            early = self.layers.number.get(node, -1) < self.layers.first(HEAD)
            behind = place is None and self.writers.get(ref.buffer, -1) >= self.starts[3]  # in a kernel with late ones
            return ref if early and not behind else ref_renamed(ref, self._later)
        layer, position = place
        turn = positions[node].index(number)
        refs = []
        for known in (HEAD - 1, self.layers.count - TAIL):
            like = self._call(known, position)
            refs.append(self.kept[positions[like][turn]])
        ref = refs[0]
        if not isinstance(ref, TensorRef) or ref.buffer in self.shared or ref.buffer in self.given:
            raise Unlike
        if ref_renamed(ref, self._further(1)) != refs[1]:
            raise Unlike
        return ref_renamed(ref, self._further(layer - HEAD + 1))

    def _constants(self) -> dict[str, torch.Tensor]:
        left = set(self.schedule.constants)
        for row in self.layers.given:
            if _buffer_name(row[1]) in left:
                left.update(_buffer_name(row[layer]) for layer in self.cut.left_out)
        return {name: tensor for name, tensor in self.cut.whole.constants.items() if name in left}

    def _buffers_of(self, steps: Sequence[Step], inputs: Sequence[str], constants: Any) -> dict[str, Buffer]:
        """As `schedule.pipeline` orders them."""
        known = self.schedule.buffers
        names = dict.fromkeys((*inputs, *constants))
        for step in steps:
            read = () if isinstance(step, ExternNode) else step.inputs
            names.update(dict.fromkeys(name for name in (*read, *step.outputs) if name is not None))
        left_out = self.cut.left_out
        like = {_buffer_name(row[layer]): _buffer_name(row[1]) for row in self.layers.given for layer in left_out}
        buffers: dict[str, Buffer] = {}
        for name in names:
            buffer = self.new_buffers.get(name) or known.get(name)
            if buffer is None and name in like and like[name] in known:
                buffer = buffer_renamed(known[like[name]], name)
            if buffer is not None:
                buffers[name] = buffer
        return buffers


def _read(step: Step) -> Sequence[str]:
    if isinstance(step, ExternNode):
        return [ref.buffer for ref in tensor_refs((step.args, step.kwargs))]
    return step.inputs


def _mutated(step: Step) -> tuple[str, ...]:
    return step.mutates if isinstance(step, ExternNode) else ()


def _moves_on(places: Sequence[tuple[int, int] | None]) -> bool:
    """Whether three are of one position, in layers that follow each other."""
    one, two, three = places
    if one is None or two is None or three is None:
        return False
    return one[1] == two[1] == three[1] and one[0] + 1 == two[0] == three[0] - 1


def _number(name: str) -> int:
    match = _BUFFER.fullmatch(name)
    if match is None:
        raise Unlike
    return int(match[1])


def _moved(name: str, by: int) -> str:
    """The buffer whose number is greater by that."""
    match = _BUFFER.fullmatch(name)
    if match is None:
        raise Unlike
    return f"buf{int(match[1]) + by}{match[2]}"


def _buffer_name(node: fx.Node) -> str:
    """The buffer that an input or a constant is."""
    return str(node.target) if node.op == "get_attr" else node.name
