"""Shadows: local copies of containers that existed before the frame, their elements loaded through sources."""

from __future__ import annotations

import collections
import itertools
import sys
import types
import weakref
from collections.abc import Container
from typing import Any, Final, TypeAlias

import torch

from argand import errors
from argand.capture.facts import classify
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a, is_struct_sequence, module_of, namespace, raw_items, raw_iter, raw_length
from argand.capture.facts.overlays import Shadow
from argand.capture.facts.sources import (
    AttrSource,
    CallSource,
    DictItemSource,
    DictKeySource,
    GetItemSource,
    RawDictItemSource,
    RawSequenceItemSource,
    SequenceItemSource,
    Source,
    instance_dict,
    values_of,
)
from argand.capture.world.native_reads import unseen_object
from argand.quick_dataclasses import dataclass

Contents: TypeAlias = "tuple[Any, list[Any] | None, object]"
"""What a container holds, what its instance dict does, its default factory."""
MOST_ELEMENTS: Final = 100_000
"""Elements of containers from outside that one capture guards; values that one transformed code rebuilds."""
_FACTORY: types.MemberDescriptorType = vars(collections.defaultdict)["default_factory"]


def make(state: CaptureState, obj: Any, source: Source, replaced: Container[object] = ()) -> Any:
    """A new container like `obj`; guards its length or keys, and its elements as they are loaded.

    Arguments:
        replaced: places of a list whose elements nobody will see; what took these is never the same.
    Raises:
        GraphBreak: a dict whose keys, or a set whose elements, cannot be guarded by value; a class with `__del__`; the
            table of imported modules; more elements than can be guarded.
    """
    if obj is sys.modules:
        raise errors.graph_break(kind="table of imported modules", context=source.name())
    state.elements += raw_length(obj)
    if state.elements > MOST_ELEMENTS:
        raise _too_many(obj, source)
    if any("__del__" in klass.__dict__ for klass in type(obj).__mro__):
        raise errors.graph_break(
            kind="object with a finalizer",
            context=source.name(),
            explanation=f"{type(obj).__name__} has a __del__ method: a copy of the object would run it too.",
            hints=("use a plain container",),
        )
    if is_a(obj, dict):
        shadow = _make_dict(state, obj, source)
    elif is_a(obj, set | frozenset):
        shadow = _make_set(state, obj, source)
    elif is_a(obj, collections.deque):
        _check_deque(type(obj), source)
        state.guard(source, "call", len, len(obj), label="SEQUENCE_LENGTH")
        items = [state.load_source(GetItemSource(source, i), obj[i]) for i in range(len(obj))]
        shadow = _new(type(obj), collections.deque)
        collections.deque.__init__(shadow, items, obj.maxlen)
    else:
        raw: Any = list if is_a(obj, list) else tuple
        state.guard(source, "len", raw.__len__(obj))
        place = SequenceItemSource if type(obj).__getitem__ is raw.__getitem__ else RawSequenceItemSource
        items = [raw.__getitem__(obj, i) for i in range(raw.__len__(obj))]
        items = [
            (each,) if i in replaced else state.load_source(place(source, i), each) for i, each in enumerate(items)
        ]
        if is_a(obj, list):
            shadow = _new(type(obj), list)
            list.extend(shadow, items)
        else:
            shadow = _new_tuple(type(obj), items, obj)
    _copy_instance_dict(state, obj, shadow, source)
    return shadow


def _too_many(obj: Any, source: Source) -> errors.GraphBreak:
    count = raw_length(obj)
    reason = f"{source.friendly()} has {count:,} elements"
    if count <= MOST_ELEMENTS:
        reason = f"{source.friendly()} is the last of containers with more than {MOST_ELEMENTS:,} elements in all"
    return errors.graph_break(
        kind="container with very many elements",
        context=source.name(),
        explanation=f"{reason}, and what is done with it depends on all of them: "
        f"more than {MOST_ELEMENTS:,} are not guarded.",
    )


def _check_deque(cls: type, source: Source) -> None:
    if any(getattr(cls, name) is not getattr(collections.deque, name) for name in ("__len__", "__getitem__", "maxlen")):
        raise errors.graph_break(
            kind="deque with methods of its own",
            context=source.name(),
            explanation=f"{cls.__name__} overrides what its elements are read with.",
        )


def _new(cls: type, base: type) -> Any:
    """An empty instance of `cls` without running its Python constructor."""
    make: Function = base.__new__
    return make(cls)


def _new_tuple(cls: type, items: list[object], like: object) -> object:
    if cls is tuple:
        return tuple(items)
    if is_struct_sequence(cls):
        return cls(items, like.__reduce__()[1][1])  # fields that are not items
    try:
        return tuple.__new__(cls, items)
    except TypeError:  # a class written in C that is not made like a tuple, as CPython knows
        raise errors.graph_break(
            kind="native object from outside",
            context=f"{module_of(cls)}.{cls.__qualname__}",
            explanation=f"{cls.__qualname__} is a class of tuples that only C can make.",
        ) from None


def _make_dict(state: CaptureState, obj: dict[object, object], source: Source) -> object:
    keys = tuple(key for key, _ in raw_items(obj))
    by_tensor = any(is_a(key, torch.Tensor) for key in keys)
    for key in keys:
        if not is_a(key, torch.Tensor) and not _guardable(key):
            raise errors.graph_break(
                kind="dict key from outside",
                context=f"{source.name()}: key of type {type(key).__name__}",
                explanation=f"{source.friendly()} has a key of type {type(key).__name__} "
                "that cannot be compared from call to call.",
            )
    by_place = by_tensor or any(map(_by_identity, keys))
    if by_place:  # guards that hold a key would keep it alive
        state.guard(source, "len", len(keys))
    else:
        state.guard(source, "dict_keys", keys)
    cls = type(obj)
    given: Any = obj
    if cls is collections.defaultdict:
        shadow: Any = collections.defaultdict(
            state.load_source(AttrSource(source, "default_factory"), given.default_factory)
        )
    elif is_a(obj, collections.OrderedDict):
        shadow = collections.OrderedDict.__new__(cls)
    else:
        shadow = dict.__new__(cls)
        if is_a(obj, collections.defaultdict):
            shadow.default_factory = state.load_source(AttrSource(source, "default_factory"), given.default_factory)
    raw = cls.__getitem__ is not dict.__getitem__
    put = collections.OrderedDict.__setitem__ if is_a(obj, collections.OrderedDict) else dict.__setitem__
    values = CallSource(source, values_of) if by_place else None
    for i, key in enumerate(keys):
        value = dict.__getitem__(obj, key)
        if values is not None:  # an optimizer's state: keys are the stand-ins of what stands at each place
            put(
                shadow,
                load_pinned(state, DictKeySource(source, i), key),
                state.load_source(SequenceItemSource(values, i), value),
            )
            continue
        step = RawDictItemSource(source, key) if raw else DictItemSource(source, key)
        put(shadow, key, state.load_source(step, value))
    return shadow


def load_pinned(state: CaptureState, source: Source, value: object) -> object:
    """A key or an element of a set: guarded to be this very object where it is one that is compared by identity."""
    if is_a(value, tuple):
        state.guard(source, "equals", value)
        return value
    loaded = state.load_source(source, value)
    if _by_identity(value):
        state.guard(source, "id", value)
    return loaded


def _by_identity(key: object) -> bool:
    return _refers_weakly(key) or (classify.handling(key) == "object" and not is_a(key, tuple))


def _make_set(state: CaptureState, obj: Any, source: Source) -> object:
    if not all(_guardable(item) for item in raw_iter(obj)):
        raise errors.graph_break(
            kind="set of objects from outside",
            context=source.name(),
            explanation=f"{source.friendly()} is a set whose elements cannot be compared from call to call.",
        )
    base: Any = set if is_a(obj, set) else frozenset
    order = in_order(obj)
    elements = CallSource(source, in_order)
    if any(map(_by_identity, order)):  # guards that hold them would keep them alive
        state.guard(elements, "len", len(order))
        for i, item in enumerate(order):
            load_pinned(state, SequenceItemSource(elements, i), item)
    else:
        state.guard(source, "call", tuple if type(obj) is base else in_order, order, label="SET_MATCH")
    plain = base.copy(obj)  # as Python copies it: filled in the same order, where it can be
    if type(obj) is base:
        shadow = plain
    elif base is frozenset:
        shadow = base.__new__(type(obj), plain)
    else:
        shadow = base.__new__(type(obj))
        set.update(shadow, plain)
    if any(one is not other for one, other in zip(order, in_order(shadow))):
        raise errors.graph_break(
            kind="set whose order depends on its history",
            context=source.name(),
            explanation=f"{source.friendly()} iterates in an order that a set with the same elements need not have.",
        )
    return shadow


def in_order(obj: Any) -> tuple[object, ...]:
    """The elements of a set as it holds them."""
    return tuple(set.__iter__(obj) if is_a(obj, set) else frozenset.__iter__(obj))


def _refers_weakly(key: object) -> bool:
    """A weak reference, which is hashed and compared as the object that it refers to: one that is by identity."""
    if type(key) is not weakref.ref:
        return False
    target = key()
    return target is not None and classify.handling(target) != "equals" and _guardable(target)


def _guardable(key: object) -> bool:
    if type(key) is weakref.ref:
        return _refers_weakly(key)
    if is_a(key, tuple):
        made_over: Any = type(key)
        compared = made_over.__eq__ is tuple.__eq__ and made_over.__hash__ is tuple.__hash__
        return compared and all(_guardable(item) for item in raw_iter(key))
    if classify.handling(key) in ("equals", "identity", "function"):
        return bool(not is_a(key, float | complex) or key == key)  # a NaN is equal to none but itself
    # an object that compares by identity is a key by identity
    cls: Any = type(key)
    return bool(cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__ and not classify.is_container(key))


def _copy_instance_dict(state: CaptureState, obj: object, shadow: object, source: Source) -> None:
    attributes = namespace(obj)
    if not is_a(attributes, dict):
        return
    base = instance_dict(state.interpreter.types, source, obj)
    if attributes or module_of(type(obj)) not in ("collections", "builtins"):
        state.guard(base, "dict_keys", tuple(attributes))
    for name, value in attributes.items():
        namespace(shadow)[name] = state.load_source(DictItemSource(base, name), value)


def probe(shadow: object) -> object:
    """An iterator that has been over all of a dict; None for other containers."""
    if not is_a(shadow, dict):
        return None
    iterator = iter(dict.values(shadow))
    collections.deque(itertools.islice(iterator, dict.__len__(shadow)), 0)
    return iterator


def reinserted(entry: Shadow) -> bool:
    """Whether keys of a dict were deleted and set again: an iterator over it finds more to come then."""
    if entry.probe is None or raw_length(entry.shadow) != len(entry.snapshot[0]):
        return False
    try:
        entry.probe.__reduce__()
    except RuntimeError:
        return True
    return False


def contents(obj: Any) -> Contents:
    """What a container holds, for comparison by identity of elements (`same_contents`)."""
    if is_a(obj, dict):
        held: object = list(raw_items(obj))
    elif is_a(obj, set | frozenset):
        held = set.copy(obj) if is_a(obj, set) else frozenset.copy(obj)  # which hashes nothing anew
    else:
        held = list(raw_iter(obj))
    attributes = namespace(obj)
    factory = _FACTORY.__get__(obj) if is_a(obj, collections.defaultdict) else None
    return held, list(attributes.items()) if is_a(attributes, dict) else None, factory


def same_contents(state: CaptureState, before: Contents, after: Contents) -> bool:
    """Whether two `contents` are the same objects in the same order (a shadow counts as its original)."""
    if is_a(before[0], set):
        return (
            len(before[0]) == len(after[0])
            and {id(origin(state, item)) for item in before[0]} == {id(origin(state, item)) for item in after[0]}
            and _same_items(state, before[1] or [], after[1] or [])
            and before[2] is after[2]
        )
    return (
        _same_items(state, before[0], after[0])
        and _same_items(state, before[1] or [], after[1] or [])
        and before[2] is after[2]
    )


def _same_items(state: CaptureState, before: list[object], after: list[object]) -> bool:
    if len(before) != len(after):
        return False
    for one, other in zip(before, after):
        if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2 and one is not other:
            if not (_same(state, one[0], other[0]) and _same(state, one[1], other[1])):
                return False
        elif not _same(state, one, other):
            return False
    return True


def _same(state: CaptureState, one: object, other: object) -> bool:
    if one is other:
        return True
    if origin(state, one) is origin(state, other):
        return True
    return type(one) is type(other) and type(one) in (int, str, float, bytes) and repr(one) == repr(other)


def origin(state: CaptureState, obj: object) -> object:
    """The container that `obj` is the shadow of, else `obj`."""
    entry = state.shadow_origin.get(id(obj))
    return obj if entry is None else entry.original


def deep_resolve(state: CaptureState, obj: object, seen: dict[int, object] | None = None) -> object:
    """See `CaptureState.deep_resolve`."""
    if classify.is_plain_atom(obj):
        return obj
    seen = {} if seen is None else seen
    if id(obj) in seen:
        resolved = seen[id(obj)]
        if type(resolved) is _OpenTuple:
            resolved.holds_itself = True
            return resolved.value
        return resolved
    if not classify.is_container(obj):
        return obj
    plain = state.shadow(obj) if state.is_outer(obj) else obj
    seen[id(obj)] = seen[id(plain)] = plain
    if is_a(plain, dict):
        for key, value in list(raw_items(plain)):
            new = deep_resolve(state, value, seen)
            if new is not value:
                dict.__setitem__(plain, key, new)
    elif is_a(plain, list | collections.deque):
        put: Function = (list if is_a(plain, list) else collections.deque).__setitem__
        for i, value in enumerate(list(raw_iter(plain))):
            new = deep_resolve(state, value, seen)
            if new is not value:
                put(plain, i, new)
    elif is_a(plain, tuple):
        seen[id(obj)] = seen[id(plain)] = opened = _OpenTuple(plain)
        items = [deep_resolve(state, value, seen) for value in tuple.__iter__(plain)]
        seen[id(obj)] = seen[id(plain)] = plain
        if any(new is not value for new, value in zip(items, tuple.__iter__(plain))):
            if opened.holds_itself:  # what is in it has the old one
                raise unseen_object(obj)
            plain = seen[id(obj)] = _new_tuple(type(plain), items, plain)
    return plain


@dataclass(slots=True)
class _OpenTuple:
    """A tuple whose items `deep_resolve` is at."""

    value: object
    holds_itself: bool = False
