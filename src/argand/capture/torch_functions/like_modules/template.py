"""What a call of a module did, as something that can be done for another one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable
from typing import Final

import torch

from argand._core import _C
from argand.capture.facts import classify
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import FreshAttrSource, Source
from argand.capture.facts.typefacts import TypeFacts
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.record.guard_runs import identity_of
from argand.capture.record.guards import Guard
from argand.capture.record.journal import Call, Load, Place
from argand.capture.torch_functions.like_modules.arguments import Unlike
from argand.capture.torch_functions.like_modules.fills import Fill, constant, is_constant, named, sequence
from argand.capture.torch_functions.like_modules.single_nodes import Alone, alone_of
from argand.quick_dataclasses import dataclass

MODULE: Final = 0
"""The place of the module itself among those of a template."""
_SHARED: Final = -1
_OF_OBJECTS: Final = frozenset(("type", "id", "is_none", "equals", "len", "has_key", "not_has_key", "tensor"))
"""Guards that do not ask what tensors hold."""
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Loading:
    """A value to load.

    Arguments:
        place: where it is.
        slot: where its stand-in goes, if it is a tensor; -1.
        own: its source is this place; else another one, where it was met earlier.
        bottom: nothing is found below it.
        guards: all that loading it does, but noting that it was; None where there may be more to it.
    """

    place: int
    slot: int
    own: bool
    value: object
    frames: list[Frame]
    bottom: bool = False
    guards: list[Guarding] | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """A stand-in from elsewhere, the same for all modules."""

    slot: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Guarding:
    """A guard to add.

    Arguments:
        identity: of its arguments.
        places: for each argument that is a source, its place; None where none is.
    """

    place: int
    guard: Guard
    identity: object
    places: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Calling:
    """An operation to record.

    Arguments:
        slots: where the tensors of its result go, with the path of each.
        alone: what recording it does, where that is known.
    """

    func: Function
    args: Fill
    kwargs: Fill
    whole: bool
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    frames: list[Frame]
    alone: Alone | None = None


Event = Loading | Other | Guarding | Calling


@dataclass(slots=True)
class Template:
    """What is done again.

    Arguments:
        steps: for each place behind the module's: the place before it, and the kind and key of the step.
        tree: the guards, of a module as the only argument; `collected` gets what is at each place when it is asked.
        events: what is done; loads: those among them.
        result: what the call gives.
        state: torch's state of then.
        asked: ids of objects that are not this module's alone, and that captured code must not have changed.
        others: stand-ins from elsewhere, with what was known of what they hold.
        before: guards that there were before the call.
    """

    steps: list[tuple[int, type[Source], object]]
    tree: _C.GuardTree
    collected: list[tuple[object, ...]]
    events: list[Event]
    loads: list[Loading]
    result: Fill
    slots: int
    state: Hashable
    asked: frozenset[int]
    others: list[tuple[TensorInfo, object]]
    before: list[Guarding]


@dataclass(slots=True, eq=False)
class Seen:
    """What was seen of a call while it was interpreted.

    Arguments:
        module, source: whose call, and where it is.
        tensors: the stand-ins among the arguments.
        entries: what was loaded and recorded.
        guards: how many there were before and after.
        nodes: how many nodes of the graph were added.
        writes: how many nodes of the graph write, after it.
        wrote: some of them are the call's.
        depth: how many frames were entered before.
        asked: ids of objects that were looked at.
        known: something of the module was loaded before.
        torch_state: of before and after.
    """

    module: torch.nn.Module
    source: Source
    tensors: list[torch.Tensor]
    entries: list[Load | Call]
    guards: tuple[int, int]
    nodes: int
    writes: int
    wrote: bool
    depth: int
    asked: set[int]
    known: bool
    torch_state: Hashable
    result: object


class Maker:
    """Makes the template of one call.

    Raises:
        Unlike: it cannot be repeated.
    """

    def __init__(self, state: CaptureState, seen: Seen) -> None:
        self.state = state
        self.seen = seen
        self.places: dict[Source, int] = {seen.source: MODULE}
        self.sources: list[Source] = [seen.source]
        self.steps: list[tuple[int, type[Source], object]] = []
        self.slots: dict[int, int] = {id(tensor): i for i, tensor in enumerate(seen.tensors)}
        self.others: list[tuple[TensorInfo, object]] = []
        self.loaded: dict[int, Loading] = {}
        self.events: list[Event] = []
        self._frames: dict[tuple[tuple[int, int], ...], list[Frame]] = {}

    def place(self, source: Source) -> int:
        """The place of a source; `_SHARED` where it does not lead through the module."""
        known = self.places.get(source)
        if known is None:
            base = _SHARED if source.base is None else self.place(source.base)
            if base == _SHARED:
                known = _SHARED
            elif isinstance(source, FreshAttrSource):
                raise Unlike
            else:
                known = len(self.steps) + 1
                self.steps.append((base, type(source), source.key))
                self.sources.append(source)
            self.places[source] = known
        return known

    def make(self) -> Template:
        seen = self.seen
        begin, end = seen.guards
        first = 0 if seen.known else begin
        every = list(itertools.islice(self.state.guards, first, end))
        ours = [self._concerns(guard) for guard in every]
        if seen.wrote and any(own and guard.kind not in _OF_OBJECTS for own, guard in zip(ours, every)):
            raise Unlike  # what tensors hold was asked, and may be what the call writes to
        before = self._guards(every, ours, 0, begin - first)
        nodes = 0
        at = begin - first
        for entry in seen.entries:
            self.events += self._guards(every, ours, at, entry.guards[0] - first)
            at = entry.guards[1] - first
            if isinstance(entry, Load):
                nodes += entry.inputs[1] - entry.inputs[0]
                self._load(entry, self._guards(every, ours, entry.guards[0] - first, at))
            else:
                nodes += entry.nodes
                self._call(entry)
        self.events += self._guards(every, ours, at, end - first)
        if nodes != seen.nodes or (self.others and seen.writes != len(self.state.graph.writing)):
            raise Unlike
        result = self.fill(seen.result)
        if any(self.place(source) != _SHARED for source in self.state.compared):
            raise Unlike  # which objects they are is guarded at the end of the capture
        tree, collected = self._tree([guard for guard, own in zip(every, ours) if own])
        inner = {parent for parent, _, _ in self.steps}
        for load in self.loaded.values():
            load.bottom = load.place not in inner
        own = {id(load.value) for load in self.loaded.values() if load.own}
        asked = frozenset(seen.asked - own - {id(seen.module)})
        loads = list(self.loaded.values())
        return Template(
            *(self.steps, tree, collected, self.events, loads, result),
            *(len(self.slots), seen.torch_state, asked, self.others, before),
        )

    # ---- guards ----------------------------------------------------------------------------------------------------

    def _concerns(self, guard: Guard) -> bool:
        """Whether a guard is about the module."""
        ours = guard.source is not None and self.place(guard.source) != _SHARED
        for arg in guard.args:
            if isinstance(arg, Source):
                if not ours and self.place(arg) != _SHARED:
                    raise Unlike
            elif type(arg) in (list, tuple):
                if any(isinstance(item, Source) and self.place(item) != _SHARED for item in arg):
                    raise Unlike
        return ours

    def _guards(self, every: list[Guard], ours: list[bool], begin: int, end: int) -> list[Guarding]:
        return [self._guarding(every[i]) for i in range(begin, end) if ours[i]]

    def _guarding(self, guard: Guard) -> Guarding:
        assert guard.source is not None
        places = None
        if any(isinstance(arg, Source) for arg in guard.args):
            places = tuple([self.place(arg) if isinstance(arg, Source) else _SHARED for arg in guard.args])
        return Guarding(self.place(guard.source), guard, identity_of(guard.args), places)

    def _tree(self, guards: list[Guard]) -> tuple[_C.GuardTree, list[tuple[object, ...]]]:
        tree = _C.GuardTree()
        module = tree.child(0, "local", 0)
        nodes = {self.seen.source: module}
        tree.check(module, "type", type(self.seen.module))
        for guard in guards:
            assert guard.source is not None
            node = guard.source.guard_node(tree, nodes)
            self._check(tree, node, guard, nodes)
        collected: list[tuple[object, ...]] = []

        def collect(*values: object) -> bool:
            collected.append(values)
            return True

        tree.check(0, "python", collect, [source.guard_node(tree, nodes) for source in self.sources])
        return tree, collected

    def _check(self, tree: _C.GuardTree, node: int, guard: Guard, nodes: dict[Source, int]) -> None:
        args: list[object] = []
        kind = guard.kind
        for arg in guard.args:
            if isinstance(arg, TypeFacts):
                raise Unlike
            if not isinstance(arg, Source):
                args.append(arg)
            elif self.place(arg) != _SHARED:
                args.append(arg.guard_node(tree, nodes))
            elif kind == "same_object":
                kind = "id"
                args.append(self._object_at(arg))
            else:
                raise Unlike
        tree.check(node, kind, *args)

    def _object_at(self, source: Source) -> object:
        """What was loaded from a source that does not lead through the module."""
        state = self.state
        for info in state.graph.inputs:
            if info.source == source:
                return info.real
        return next((state.object_by_id(key) for key, at in state.outer.items() if at == source), None)

    # ---- loads and calls -------------------------------------------------------------------------------------------

    def frames(self, places: list[Place]) -> list[Frame]:
        """Frames that stand where those stood that were entered in the call."""
        inner = places[self.seen.depth :]
        key = tuple([(id(frame), pc) for frame, pc in inner])
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = [_standing(frame, pc) for frame, pc in inner]
        return frames

    def _load(self, entry: Load, guards: list[Guarding]) -> None:
        place = self.place(entry.source)
        if place == _SHARED or place in self.loaded:
            return
        value, result = entry.value, entry.result
        if type(result) in _TENSORS:
            info = self.state.graph.tensors.get(id(result))
            if info is None:
                raise Unlike
            self._loading(place, self.slots.setdefault(id(result), len(self.slots)), info.source, entry)
            return
        if result is not value:
            raise Unlike
        self._loading(place, -1, self.state.outer.get(id(value)), entry)
        if _is_plain(value):
            self.loaded[place].guards = guards

    def _loading(self, place: int, slot: int, source: Source | None, entry: Load) -> None:
        own = source == entry.source
        event = Loading(place, slot, own, entry.value, self.frames(entry.places))
        self.loaded[place] = event
        self.events.append(event)

    def _slot(self, tensor: torch.Tensor, places: list[Place]) -> int:
        slot = self.slots.get(id(tensor))
        if slot is not None:
            return slot
        info = self.state.graph.tensors.get(id(tensor))
        if info is None or info.source is None:
            raise Unlike
        slot = self.slots[id(tensor)] = len(self.slots)
        place = self.place(info.source)
        if place == _SHARED:
            self.others.append((info, info.constant))
            self.events.append(Other(slot, tensor))
        else:  # loaded before the call
            self._loading(place, slot, info.source, Load(info.source, info.real, tensor, (0, 0), (0, 0), places))
        return slot

    def _call(self, entry: Call) -> None:
        args = self.fill(entry.args, entry.places)
        kwargs = self.fill(entry.kwargs, entry.places)
        slots: list[tuple[int, tuple[int, ...]]] = []
        self._results(entry.result, (), slots)
        alone = None if entry.alone is None else alone_of(self.state.graph, entry, self.slots)
        frames = self.frames(entry.places)
        self.events.append(Calling(entry.func, args, kwargs, entry.whole, tuple(slots), frames, alone))

    def _results(self, value: object, path: tuple[int, ...], slots: list[tuple[int, tuple[int, ...]]]) -> None:
        if isinstance(value, torch.Tensor):
            if type(value) not in _TENSORS:
                raise Unlike
            if id(value) not in self.slots:
                slots.append((len(self.slots), path))
                self.slots[id(value)] = len(self.slots)
        elif isinstance(value, tuple | list):
            for number, item in enumerate(value):
                self._results(item, (*path, number), slots)

    def fill(self, value: object, places: list[Place] = []) -> Fill:  # noqa: B006  never changed
        """What makes a value like this one of the tensors in the slots."""
        cls = type(value)
        if is_constant(value):
            return constant(value)
        if cls in _TENSORS:
            assert isinstance(value, torch.Tensor)
            return operator.itemgetter(self._slot(value, places))
        if cls is tuple or cls is list:
            assert isinstance(value, tuple | list)
            return sequence(cls, [self.fill(item, places) for item in value])
        if cls is dict:
            assert isinstance(value, dict)
            if not all(type(key) is str for key in value):
                raise Unlike
            return named({key: self.fill(item, places) for key, item in value.items()})
        if cls is slice:
            assert isinstance(value, slice)
            parts = sequence(tuple, [self.fill(part, places) for part in (value.start, value.stop, value.step)])
            return lambda slots: slice(*parts(slots))
        raise Unlike


def _is_plain(value: object) -> bool:
    """Whether loading a value is guarding it and noting where it is."""
    cls = type(value)
    return (
        cls is bool
        or value is None
        or (
            classify.handling(value) == "object"
            and cls.__module__ != "numpy"
            and issubclass(cls, (torch.nn.Module, dict))
        )
    )


def _standing(frame: Frame, pc: int) -> Frame:
    """A frame of the same code that stands at an instruction, and has nothing else."""
    copy = Frame(frame.program, [], frame.globals, frame.builtins, frame.exc, frame.func)
    copy.pc = pc
    copy.quiet = frame.quiet
    return copy
