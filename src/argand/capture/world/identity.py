"""What a capture relies on when the program asks which object something is.

Objects of user classes, functions made anew, containers and tensors are guarded by their type and parts, not by which
object they are: another call may bring other ones. Where the program compares two of them, hashes one or asks for its
id, that becomes a guard: *pinned* objects must be the same ones in every call, *compared* ones stay different
(that they are the same is guarded wherever one is loaded twice).
"""

from __future__ import annotations

import types
from collections import defaultdict
from typing import Any

from argand.capture.facts import classify
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.sources import ConstSource, FreshAttrSource, Source
from argand.capture.facts.values.symbolic import SYMBOLIC

VALUES = frozenset((int, float, complex, str, bytes))
"""Types whose objects are guarded by value: equal ones may be one object in a call, and several in another."""


def _is_single(value: object) -> bool:
    """Whether CPython has one object only of this value."""
    if type(value) is int:
        return -5 <= value <= 256
    if type(value) is str:
        return value == "" or (len(value) == 1 and ord(value) < 256)
    return type(value) is bytes and len(value) <= 1


def note_value(state: CaptureState, source: Source, value: object) -> None:
    """A value that is guarded by what it is equal to was loaded from a source."""
    if type(value) in VALUES and not _is_single(value):
        state.value_sources.setdefault(id(value), (value, []))[1].append(source)


def pin_value(state: CaptureState, value: object) -> None:
    """The program depends on which object of its value this is."""
    for source in state.value_sources.get(id(value), (value, ()))[1]:
        state.guards.add(source, "id", value)


def values_compared(state: CaptureState, a: object, b: object) -> None:
    """The program asks whether two values are one object: for equal ones, the values do not tell."""
    if type(a) is type(b) and a == b:
        pin_value(state, a)
        pin_value(state, b)


def compared(state: CaptureState, obj: object) -> None:
    """The program compares this object with others by identity, as `is` and the default `==` do."""
    if type(obj) is types.MethodType:
        compared(state, obj.__self__)
    source = state.source_of(obj)
    if isinstance(source, FreshAttrSource):
        return  # a new object at each read is no other one
    if source is not None and classify.handling(obj) not in ("equals", "identity"):
        state.compared[source] = type(obj)


def pin(state: CaptureState, obj: object) -> None:
    """The program depends on which object this is: on its hash, id or default text."""
    source = state.outer.get(id(obj))
    if source is not None and classify.handling(obj) in ("object", "function"):
        if not isinstance(source, ConstSource):
            state.guards.add(source, "id", obj)


def is_settled(state: CaptureState, function: types.FunctionType) -> bool:
    """Whether a function was not made in captured code, as far as can be told: its cells hold nothing that differs from
    call to call (a class, for those that call `super()`)."""
    if id(function) in state.local_objects:
        return False
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            return False
        if not classify.is_constant(held) or id(held) in state.local_objects:
            return False
    return True


class LocalId(int):
    """`id()` of an object made in the captured code: whoever needs it afterwards needs that of the rebuilt object."""

    of: object


def id_of(interp: Interpreter, obj: Any) -> int:
    """`id(obj)`."""
    state = interp.state
    state.guards.of_process = "an address"
    if type(obj) in SYMBOLIC:
        obj = obj.number()
    info = state.tensors.get(id(obj))
    if info is not None and info.source is not None and info.real is not None:
        state.guard(info.source, "id", info.real)
        return id(info.real)
    original = interp.origin(obj)
    interp.pin(original)
    if type(original) in VALUES:
        pin_value(state, original)
    constant = classify.is_constant(original) and id(original) not in state.local_objects
    if interp.is_outer(original) or (info is None and constant):
        return id(original)
    number = LocalId(id(original))
    number.of = obj
    return number


def guard(state: CaptureState) -> None:
    """Add the guards for what was compared; called once, when the interpretation is over."""
    groups: dict[type, list[Source]] = defaultdict(list)
    for source, cls in state.compared.items():
        groups[cls].append(source)
    for sources in groups.values():
        if len(sources) > 1 and any(not isinstance(source, ConstSource) for source in sources):
            state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)
