"""What a part of the program loaded from outside and recorded, in order: for a like part it can be done again."""

from __future__ import annotations

from typing import Final, TypeVar

from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import Source
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
    """

    func: Function
    args: Args
    kwargs: Kwargs
    result: object
    whole: bool
    guards: tuple[int, int]
    nodes: int
    places: list[Place]


def kept(value: T) -> T:
    """A value as it is now: the program may change its lists and dicts later."""
    cls = type(value)
    if isinstance(value, list | tuple) and cls in (list, tuple):
        return cls([kept(item) for item in value])  # type: ignore[call-arg]
    if isinstance(value, dict) and cls is dict:
        return {key: kept(item) for key, item in value.items()}  # type: ignore[return-value]
    return value


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
        guards, nodes = len(state.guards), len(builder.graph.nodes)
        noted = kept(args), kept(kwargs)
        self.busy = True
        try:
            result: object = (builder.call if whole else builder.record)(func, args, kwargs)
        finally:
            self.busy = False
        after = (guards, len(state.guards)), len(builder.graph.nodes) - nodes
        self.entries.append(Call(func, *noted, kept(result), whole, *after, self._places()))
        return result
