"""From an ATen graph of five layers to that of all: its calls under the same rule, for as many layers as there are.

A run of calls in a row repeats (`layers`), each period with the arguments that the one before has for its layer. What
stands between two periods of a run can be repeated as often as is wanted: copies read what the period before them left,
and arguments of the layers that they are of. Calls outside of the run read what belongs to the layer that is next to
them. Whatever is not so leads to `Unlike`, and the whole graph is traced.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Final

from torch import fx

from argand.backends.programs.like_layers.cutting import HEAD, TAIL
from argand.backends.programs.like_layers.five_layers import Shorter
from argand.backends.programs.like_layers.layers import Unlike, find_layers
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram, LayerRun
from argand.graph.origin import NodeOrigin

_LEAST: Final = 4  # periods of a run: those of the first layer and of the last are others, but for some calls

Key = Hashable
Place = tuple[Key, int]
"""What a value is for a layer, and the layer's number among the five."""


class Stretching:
    """One graph.

    Arguments:
        program: of five layers.
        back: whether the last layer comes first.
        places: of the inputs that are of layers.

    Fields:
        graph: of all layers. Its placeholders are made by whoever calls `run`.
        at: (turn, position) of a call of the run in `graph`, or a call outside of it, and what it is in `graph`.
        beside: calls outside of the run with an input of a layer as their only argument, of which each layer has one:
            what they are for which layer.
    """

    def __init__(self, program: AtenProgram, short: Shorter, places: Mapping[fx.Node, Place], *, back: bool) -> None:
        layers = find_layers(program, _LEAST)
        if layers is None:
            raise Unlike
        self.program, self.short, self.layers, self.step = program, short, layers, -1 if back else 1
        self.gap = short.gap
        self.places = places
        self.graph = fx.Graph()
        self.at: dict[Any, fx.Node] = {}
        self.layer_of = _layers_by_name(short)
        self.repeated = {node for row in layers.given for node in row}
        self.ends: dict[fx.Node, Place] = {}
        self.ends_of: dict[Place, fx.Node] = {}
        self._offsets: dict[int, int | None] = {}
        self._origins: dict[tuple[int, int], NodeOrigin] = {}
        self._within = {
            layers.calls[number]: divmod(number - layers.begin, layers.length)
            for number in range(layers.begin, layers.first(layers.count))
        }
        self._compare_given()
        self._compare_calls()
        self.beside = self._beside()

    def run(self, inputs: Mapping[fx.Node, fx.Node], given: Callable[[Key, int], fx.Node]) -> None:
        """Make the calls.

        Arguments:
            inputs: what the inputs are that are of no layer.
            given: what an input is for a layer of all.
        """
        self.inputs, self.given = inputs, given
        layers = self.layers
        calls, begin, end = layers.calls, layers.begin, layers.first(layers.count)
        for node in self.program.graph.nodes:
            if node.op == "get_attr":
                self.at[node] = compat.copy_node(self.graph, node, self.at.__getitem__)
        for node in calls[:begin]:
            self._copy_outside(node, late=False)
        self.begin = sum(1 for node in self.graph.nodes if node.op == "call_function")
        kept = self._last_before()
        for turn in range(layers.count + self.gap):
            period = turn if turn <= kept else max(kept, turn - self.gap)
            for position in range(layers.length):
                self._copy_inside(calls[layers.first(period) + position], period, turn, position)
        for node in calls[end:]:
            self._copy_outside(node, late=True)

    def run_of_all(self) -> LayerRun | None:
        """Where the layers are in `graph`, behind the graph passes; None where that is not told."""
        if not self.program.rewritten:
            return None
        layers, rows = self.layers, []
        with contextlib.suppress(Unlike):
            for row in layers.given:
                key, layer = self.places.get(row[0]) or self.ends[row[0]]
                first = self.turn(layer)
                turns = range(first, first + self.step * (len(row) + self.gap), self.step)
                rows.append(tuple([self._given(key, turn).name for turn in turns]))
            return LayerRun(self.begin, layers.length, layers.count + self.gap, tuple(rows))
        return None

    def _last_before(self) -> int:
        """The period behind which copies of it come: of the layer before those that are left out."""
        for position in range(self.layers.length):
            offset = self._offset(position)
            if offset is not None:
                return min(max(HEAD - 1 - offset if self.step > 0 else offset - HEAD, 1), self.layers.count - 2)
        raise Unlike

    # --- what is asked of the graph

    def layer(self, node: fx.Node) -> int | None:
        """The layer among the five that a call of the run comes from: what is before the first of them is -1."""
        within = self._within.get(node)
        offset = None if within is None else self._offset(within[1])
        return None if within is None or offset is None else offset + self.step * within[0]

    def _offset(self, position: int) -> int | None:
        """The layer that a call of the first period comes from; None where that is not told."""
        if position not in self._offsets:
            layers = self.layers
            numbers = []
            for period in range(layers.count):
                call: Any = layers.calls[layers.first(period) + position]
                while call.target is operator.getitem:  # a part of a result, which may be asked for later
                    call = call.args[0]
                origin = call.meta.get("origin")
                if origin is not None and origin.source_node in self.layer_of:
                    numbers.append(self.layer_of[origin.source_node][0] - self.step * period)
            agree = len(numbers) >= HEAD and len(set(numbers)) == 1
            self._offsets[position] = numbers[0] if agree else None
        return self._offsets[position]

    def place(self, node: fx.Node) -> Place | None:
        """What a call is, and for which layer; None for one that is of none."""
        if node in self.beside:
            return self.beside[node]
        if self._within.get(node) is None:
            return None
        layer = self.layer(node)
        if layer is None:
            raise Unlike
        return self.key(node, layer), layer

    def key(self, node: fx.Node, layer: int) -> Key | None:
        """What a call is for its layer; None for one outside of the run."""
        if node in self.beside:
            return self.beside[node][0]
        within = self._within.get(node)
        if within is None:
            return None
        return "call", within[1], layer - self.step * within[0]

    def for_layer(self, node: fx.Node, layer: int) -> fx.Node:
        """What a call is that is for that layer among the five."""
        key = self.key(node, layer)
        return self._plain(node) if key is None else self.of_layer(key, self.turn(layer))

    def turn(self, layer: int) -> int:
        """The number among all of a layer among the five."""
        return layer if layer < HEAD else layer + self.gap

    def of_layer(self, key: Key, layer: int) -> fx.Node:
        """What a call is for a layer of all."""
        if (key, layer) in self.at:
            return self.at[key, layer]
        if not (isinstance(key, tuple) and key[0] == "call"):
            raise Unlike
        _, position, offset = key
        return self._inside(layer - offset if self.step > 0 else offset + self.gap - layer, position)

    def outside(self, node: fx.Node) -> fx.Node:
        """What a call is for those that come after all."""
        return self._argument_outside(node, late=True)

    # --- what is alike

    def _compare_given(self) -> None:
        """Raises Unlike: inputs of the periods of the run are not those of one layer after the other."""
        step, known_places = self.step, set(self.places.values())
        for row in self.layers.given:
            known = [(turn, self.places[node]) for turn, node in enumerate(row) if node in self.places]
            if not known:
                raise Unlike
            turn, (key, layer) = known[0]
            first = layer - step * turn
            for turn, node in enumerate(row):
                layer = first + step * turn
                if node not in self.places and (key, layer) not in known_places:
                    self.ends[node] = key, layer  # where a layer is not all in a run, that is by what it is read
                    self.ends_of[key, self.turn(layer)] = node
                elif self.places.get(node) != (key, layer):
                    raise Unlike

    def _compare_calls(self) -> None:
        """Raises Unlike: the run does not lead from the first of the five layers to the last, or the other way."""
        offsets = [offset for offset in map(self._offset, range(self.layers.length)) if offset is not None]
        last = self.step * (self.layers.count - 1)
        over = [offset for offset in offsets if not self._is_late(offset) and self._is_late(offset + last)]
        if not over or max(offsets) > min(offsets) + 1:
            raise Unlike

    def _is_late(self, layer: int) -> bool:
        """Whether a layer among the five comes behind those that are left out."""
        return layer >= HEAD if self.step > 0 else layer < HEAD

    def _beside(self) -> dict[fx.Node, Place]:
        kinds: dict[Hashable, dict[int, fx.Node]] = {}
        for node in self.layers.calls:
            if self._within.get(node) is not None or len(node.all_input_nodes) != 1:
                continue
            place = self.places.get(node.all_input_nodes[0])
            if place is not None and all(user.op == "output" for user in node.users):
                given = fx.map_arg((node.args, node.kwargs), lambda arg: None)
                kinds.setdefault(("beside", place[0], str(node.target), str(given)), {})[place[1]] = node
        whole = {key: nodes for key, nodes in kinds.items() if nodes.keys() >= set(range(HEAD + TAIL))}
        return {node: (key, layer) for key, nodes in whole.items() for layer, node in nodes.items()}

    # --- copies

    def _copy_inside(self, node: fx.Node, period: int, turn: int, position: int) -> None:
        moved = turn - period
        shift = moved if self.step > 0 else self.gap - moved

        def argument(arg: fx.Node) -> fx.Node:
            within = self._within.get(arg)
            if within is not None:
                return self._inside(within[0] + moved, within[1])
            if arg in self.repeated:
                key, layer = self.places.get(arg) or self.ends[arg]
                return self._given(key, layer + shift)
            if arg in self.places or arg in self.beside:
                raise Unlike
            return self._plain(arg)

        copied = self.at[turn, position] = self._copy(node, argument)
        if (origin := node.meta.get("origin")) is not None and origin.made_by != "partition":
            copied.meta["origin"] = self._origin(origin, shift)

    def _copy_outside(self, node: fx.Node, *, late: bool) -> None:
        if node not in self.beside:
            self.at[node] = self._copy(node, lambda arg: self._argument_outside(arg, late=late))
            return
        key, layer = self.beside[node]
        turns = [self.turn(layer)]
        others = [turn for turn in range(HEAD, HEAD + self.gap) if (key, turn) not in self.at]
        if layer == HEAD - 1 and (key, HEAD + self.gap) not in self.at:
            turns += others
        elif layer == HEAD and (key, HEAD - 1) not in self.at:
            turns += reversed(others)
        source, _ = self.places[node.all_input_nodes[0]]
        for turn in turns:
            own = self._given(source, turn)
            self.at[key, turn] = self._copy(node, {node.all_input_nodes[0]: own}.__getitem__)

    def _argument_outside(self, arg: fx.Node, *, late: bool) -> fx.Node:
        within = self._within.get(arg)
        if within is not None or arg in self.places:
            layer = self.places[arg][1] if within is None else self.layer(arg)
            if layer is None or self._is_late(layer) != late:
                raise Unlike
            if within is None:
                return self._given(self.places[arg][0], self.turn(layer))
            return self._inside(within[0] + self.gap, within[1])
        if arg in self.beside:
            raise Unlike
        return self._plain(arg)

    def _given(self, key: Key, turn: int) -> fx.Node:
        """What an input is for a layer of all."""
        end = self.ends_of.get((key, turn))
        return self.given(key, turn) if end is None else self._plain(end)

    def _inside(self, turn: int, position: int) -> fx.Node:
        node = self.at.get((turn, position))
        if node is None:
            raise Unlike
        return node

    def _plain(self, arg: fx.Node) -> fx.Node:
        node = self.inputs.get(arg) if arg.op == "placeholder" else self.at.get(arg)
        if node is None:
            raise Unlike
        return node

    def _copy(self, node: fx.Node, argument: Callable[[fx.Node], Any]) -> fx.Node:
        kwargs = fx.map_arg(node.kwargs, argument) if node.kwargs else {}
        copied = compat.new_node(self.graph, node.target, fx.map_arg(node.args, argument), kwargs)
        copied.meta.update(node.meta)
        origin = node.meta.get("origin")
        if origin is not None and origin.made_by == "partition":  # it copies its argument
            copied.meta["origin"] = replace(origin, source_node=copied.all_input_nodes[0].name)
        return copied

    def _origin(self, origin: NodeOrigin, shift: int) -> NodeOrigin:
        """Where the copy for a layer comes from."""
        known = self._origins.get((id(origin), shift))
        if known is None:
            known, place = origin, self.layer_of.get(origin.source_node)
            if place is not None:
                layers = self.short.layers
                name = layers.calls[layers.first(place[0] + shift) + place[1]].name
                known = NodeOrigin(name, origin.user_line, origin.made_by, origin.caller)
            self._origins[id(origin), shift] = known
        return known


def _layers_by_name(short: Shorter) -> dict[str, tuple[int, int]]:
    """For each call of the five layers, its layer among them and its place in that."""
    layers = short.layers
    left = [*range(HEAD), *range(layers.count - TAIL, layers.count)]
    return {
        layers.calls[layers.first(whole) + position].name: (layer, position)
        for layer, whole in enumerate(left)
        for position in range(layers.length)
    }
