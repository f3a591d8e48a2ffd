"""What a part of the program loaded from outside and recorded, in order: for a like part it can be done again."""

from __future__ import annotations

from typing import Final, TypeVar

import torch

from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.sources import Source
from argand.capture.facts.values.tensor_info import Dynamic, TensorInfo
from argand.capture.metadata.data_errors import kind
from argand.capture.sizes import symbolic_tensors
from argand.graph.trees import rebuilt
from argand.quick_dataclasses import dataclass

T = TypeVar("T")
Place = tuple[Frame, int]
"""An interpreted frame and the index of its next instruction."""


@dataclass(slots=True)
class Load:
    """A value that was loaded.

    Arguments:
        guards: how many there were before it and after it.
        inputs: how many inputs the graph had before it and after it.
        places: where the program stood, outermost first.
    """

    source: Source
    value: object
    result: object
    guards: tuple[int, int]
    inputs: tuple[int, int]
    places: list[Place]


@dataclass(slots=True)
class Call:
    """A call of torch's that was recorded.

    Arguments:
        whole: whether it came by `GraphBuilder.call`; else by `record`.
        nodes: how many nodes it added to the graph.
        alone: what is known of the result, where it is one new tensor, and all that the call did is to put one node
            into the graph, which computes it.
        varying: what of its sizes varied then.
    """

    func: Function
    args: Args
    kwargs: Kwargs
    result: object
    whole: bool
    guards: tuple[int, int]
    nodes: int
    places: list[Place]
    alone: TensorInfo | None
    varying: Dynamic | None


def kept(value: T) -> T:
    """A value as it is now: the program may change its lists and dicts later."""
    return rebuilt(value, kept)


def _alone(builder: GraphBuilder, func: Function, result: object) -> TensorInfo | None:
    """What is known of the result of a call that put one node into the graph, where the node is all there is to it."""
    info = builder.tensors.get(id(result)) if type(result) is torch.Tensor else None
    if info is None or builder.answered is not None or kind(func) == "foreign":
        return None
    if id(result) in builder.several or id(result) in builder.unsure:
        return None
    node = info.node
    if node is not next(iter(reversed(builder.graph.nodes))) or node in builder.kept or node.op == "placeholder":
        return None
    fitted = info.dynamic is not symbolic_tensors.UNFITTED
    return info if info.constant is None and fitted and "writes" not in node.meta else None


class Journal:
    """Notes loads and calls, but those that are made on behalf of another."""

    def __init__(self, state: CaptureState) -> None:
        self.state: Final = state
        self.entries: list[Load | Call] = []
        self.busy = False

    def _places(self) -> list[Place]:
        return [(frame, frame.pc) for frame in self.state.interpreter.frames]

    def load(self, source: Source, value: object) -> object:
        """`state.load_source`, noted."""
        state = self.state
        guards, inputs = len(state.guards), len(state.graph.inputs)
        self.busy = True
        try:
            result: object = state.load_source(source, value)
        finally:
            self.busy = False
        after = (guards, len(state.guards)), (inputs, len(state.graph.inputs))
        self.entries.append(Load(source, value, result, *after, self._places()))
        return result

    def call(self, func: Function, args: Args, kwargs: Kwargs, whole: bool) -> object:
        """`graph.call` or `graph.record`, noted."""
        state = self.state
        builder = state.graph
        guards, nodes, risks = len(state.guards), len(builder.graph.nodes), len(builder.on_data.behind)
        noted = kept(args), kept(kwargs)
        self.busy, builder.answered = True, None
        try:
            result: object = (builder.call if whole else builder.record)(func, args, kwargs)
        finally:
            self.busy = False
        after = (guards, len(state.guards)), len(builder.graph.nodes) - nodes
        alone = None
        if after == ((guards, guards), 1) and risks == len(builder.on_data.behind):
            alone = _alone(builder, func, result)
        varying = alone.dynamic if alone is not None else None
        self.entries.append(Call(func, *noted, kept(result), whole, *after, self._places(), alone, varying))
        return result
