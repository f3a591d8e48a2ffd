"""A captured graph with five of its layers, which is traced in place of the whole (`stretching` makes that of it).

Layers are runs of calls, each of which does to its arguments and to what the one before left what that one did; their
arguments are tensors that look the same. So what is traced of one is traced of the next: a trace of a call follows from
the call and from what is known of its arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.backends.programs.like_layers.cutting import HEAD, TAIL, Cutting
from argand.backends.programs.like_layers.layers import Layers, longest_run
from argand.graph import compat
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class Shorter:
    """A captured graph without most of its layers.

    Arguments:
        gm, inputs: what is left, and its arguments.
        layers: of the whole.
        places: for each argument of what is left, its position among those of the whole.
        rows: for each argument of a layer, the positions of those of all layers. What is a layer here may begin in the
            middle of the program's: a row can have one more at its end.
        values: all arguments.
    """

    gm: fx.GraphModule
    inputs: list[Any]
    layers: Layers
    places: list[int]
    rows: list[list[int]]
    values: Sequence[Any]

    @property
    def gap(self) -> int:
        """How many layers are left out."""
        return len(self.left_out)

    @property
    def left_out(self) -> range:
        """The layers that are."""
        return range(HEAD, self.layers.count - TAIL)


def shorter(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Shorter | None:
    """A graph with fewer layers; None where there are few, or somebody else reads what one of the middle left."""
    nodes = list(gm.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    if any(node.op == "call_module" or "edge" in node.meta for node in nodes) or len(given) != len(example_inputs):
        return None
    values = dict(zip(given, example_inputs))
    calls = [node for node in nodes if node.op in ("call_function", "call_method")]
    layers = longest_run(calls, {}, lambda one, two: _look_alike(one, two, values))
    if layers is None or _are_shared(example_inputs):
        return None
    cutting = Cutting(gm.graph, layers)
    if not cutting.run() or not all(cutting.gone.issuperset(row[HEAD : layers.count - TAIL]) for row in layers.given):
        return None
    cutting.reader = len(calls)
    compat.copy_node(cutting.graph, nodes[-1], cutting.argument)
    if cutting.lost is not None:
        return None
    less = copy.copy(gm.__dict__)
    less["_graph"] = cutting.graph
    left = object.__new__(type(gm))
    left.__dict__.update(less)
    position = {node: number for number, node in enumerate(given)}
    places = [number for number, node in enumerate(given) if node not in cutting.gone]
    rows = [[position[node] for node in row] for row in layers.given]
    return Shorter(left, [example_inputs[place] for place in places], layers, places, rows, example_inputs)


def _look_alike(one: fx.Node, two: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """Whether two calls, or two arguments of the graph, are of values of which the same is known."""
    if one.op != "placeholder":
        return one.op == two.op != "get_attr"
    mine, its = values[one], values[two]
    if not (type(mine) is type(its) and isinstance(mine, torch.Tensor) and compat.is_plain_tensor(mine)):
        return False
    return (
        compat.is_plain_tensor(its)
        and mine.is_leaf
        and its.is_leaf
        and mine.requires_grad == its.requires_grad
        and mine.dtype is its.dtype
        and mine.device == its.device
        and mine.shape == its.shape
        and mine.stride() == its.stride()
        and mine.storage_offset() == its.storage_offset()
        and mine.is_inference() == its.is_inference()
    )


def _are_shared(values: Sequence[Any]) -> bool:
    """Whether one tensor is several arguments."""
    tensors = [id(value) for value in values if isinstance(value, torch.Tensor)]
    return len(set(tensors)) < len(tensors)
