"""What captured code adds to containers from before the frame without looking at what they hold: no guard says how long
they are, or, of elements of lists that are replaced, what they were. Whoever looks asks for the shadow
(`CaptureState.shadow`), which takes over what was added until then."""

from __future__ import annotations

import collections
import sys
import warnings
from collections.abc import Iterable
from typing import Final, cast

from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.overlays import UNSET, Overlay
from argand.capture.facts.sources import AttrSource, CallSource, InstanceDictSource, is_module_table

_KINDS: Final[dict[type, str]] = {
    list: "end", collections.deque: "end", set: "elements",
    dict: "items", collections.defaultdict: "items", collections.Counter: "items",
}  # fmt: skip
_KEYS: Final = frozenset((str, int, bool, bytes, type(None)))


def is_plain_key(key: object) -> bool:
    """Whether nothing has to be known of a dict or set for this to be put into it."""
    return type(key) in _KEYS or (type(key) is tuple and all(map(is_plain_key, key)))


def of(state: CaptureState, obj: object) -> Overlay | None:
    """What was added to a container, or may be; None where its shadow stands for it, or has to."""
    entry = state.additions.get(id(obj))
    kind = _KINDS.get(type(obj))
    if entry is not None or kind is None or id(obj) in state.shadows:
        return entry
    source = state.outer.get(id(obj))
    if source is None or is_a(source, InstanceDictSource) or is_module_table(source) or obj is state.listener:
        return None
    if (
        obj is warnings.filters
        or obj is sys.modules
        or (is_a(obj, dict) and ("__builtins__" in obj or "__spec__" in obj))
    ):
        return None
    return Overlay(obj, kind)


def add(state: CaptureState, obj: object, values: Iterable[object]) -> bool:
    """Note that values go to the end of a list or deque, or into a set; items (pairs) into a dict.

    Returns:
        Whether that is all there is to it; otherwise the shadow has to take them.
    """
    entry = of(state, obj)
    if entry is None or entry.kind == "places":
        return False
    added = list(values)
    if entry.kind == "end":
        entry.values.update(zip(range(len(entry.values), len(entry.values) + len(added)), added))
    else:
        pairs = [(key, None) for key in added]
        if entry.kind == "items":
            pairs = cast("list[tuple[object, None]]", added)
        if not all(is_plain_key(key) for key, _ in pairs):
            return False
        entry.values.update(pairs)
    _note(state, entry)
    return True


def replace(state: CaptureState, obj: list[object], index: object, value: object) -> bool:
    """Note that a value takes the place of an element of a list. Returns as `add` does."""
    entry = of(state, obj)
    if entry is None or type(index) is not int or not -len(obj) <= index < len(obj):
        return False
    if id(obj) not in state.additions:
        entry = Overlay(obj, "places")
        state.guard(state.outer[id(obj)], "len", len(obj))
    elif entry.kind != "places":
        return False
    entry.values[index % len(obj)] = value
    _note(state, entry)
    return True


def replacement(entry: Overlay, index: int) -> object:
    """What took the place of an element of a list; UNSET if nothing, or if the list has no such element."""
    length = len(entry.obj)
    return entry.values.get(index % length, UNSET) if -length <= index < length else UNSET


def _note(state: CaptureState, entry: Overlay) -> None:
    if id(entry.obj) not in state.additions:
        state.additions[id(entry.obj)] = entry
        state.effect_order.append(entry)
        state.keep(entry.obj)


def varying_length(state: CaptureState, obj: object) -> tuple[object, int, int | None] | None:
    """The number of elements of a list or deque from outside where that varies from call to call, how many were added
    to it, and how many it can have at most; None where it does not vary, or it is known by what it holds."""
    if type(obj) not in (list, collections.deque) or id(obj) in state.shadows or obj is state.listener:
        return None
    source = state.outer.get(id(obj))
    added = state.additions.get(id(obj))
    if source is None or state.policy is None or (added is not None and added.kind == "places"):
        return None
    place, length = CallSource(source, len), len(cast("list[object]", obj))
    if not state.policy.number(place, length):
        return None
    most = None
    if added is not None and isinstance(obj, collections.deque):
        most = obj.maxlen
        state.guard(AttrSource(source, "maxlen"), "equals", most)
    return state.load_source(place, length), 0 if added is None else len(added.values), most


def put(target: object, entry: Overlay) -> None:
    """Add to a shadow what was added to its container."""
    if is_a(target, dict):
        dict.update(target, entry.values)
    elif is_a(target, set):
        set.update(target, list(entry.values))
    elif isinstance(target, list) and entry.kind == "places":
        for index, value in entry.values.items():
            target[index] = value
    elif isinstance(target, list | collections.deque):
        target.extend(entry.values.values())
