"""Iteration, unpacking and the mappings of `**`: natively where that is all there is, else by Python's own protocol."""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any, Final

from argand._core import _C
from argand.capture.facts.exceptions import InternalFailure, ObservedException, raise_native
from argand.capture.facts.frames import NULL, STOP
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import CONTAINERS, Slot
from argand.capture.objects import descriptors, generators, keys, outer_generators, polyfills, text
from argand.outcomes.fingerprints import ordered_by_process

# ---- iteration -----------------------------------------------------------------------------------------------------


class NativeIterator:
    """Lets native code iterate over something whose iteration is Python code."""

    __slots__ = ("interp", "iterator")

    def __init__(self, interp: Interpreter, iterator: object) -> None:
        self.interp = interp
        self.iterator = iterator

    def __iter__(self) -> NativeIterator:
        return self

    def __next__(self) -> object:
        interp = self.interp
        try:
            goes_on, value = next_value(interp, self.iterator)
        except ObservedException as observed:
            exc = observed.value
        except Exception as bug:
            raise InternalFailure(bug) from bug
        else:
            if goes_on:
                return value
            raise StopIteration
        interp.propagating = exc
        try:
            raise_native(exc)
        finally:
            del exc  # its traceback refers to this frame


class NativeIterable:
    """What native code that asks for an iterator later has in place of an object whose `__iter__` is Python code."""

    __slots__ = ("interp", "value")

    def __init__(self, interp: Interpreter, value: object) -> None:
        self.interp = interp
        self.value = value

    def __iter__(self) -> object:
        interp = self.interp
        try:
            return iter(native_iterable(interp, self.value))
        except ObservedException as observed:
            exc = observed.value
        except Exception as bug:
            raise InternalFailure(bug) from bug
        interp.propagating = exc
        try:
            raise_native(exc)
        finally:
            del exc  # its traceback refers to this frame


def native_iterable_later(interp: Interpreter, value: object) -> Any:
    """As `native_iterable`, where `__iter__` is called when the native code asks for the iterator."""
    if interp.types.python_level(type(value), "__iter__") or not is_iterable(interp, value):
        return NativeIterable(interp, value)
    return native_iterable(interp, value)


def is_iterable(interp: Interpreter, value: Any) -> bool:
    """Whether `iter(value)` finds an iterator protocol (the call itself may still fail)."""
    return interp.types.lookup(type(value), "__iter__") is not None and has_iterator(interp, value)


def has_iterator(interp: Interpreter, value: Any) -> bool:
    """The same where an `__iter__` that is None counts as one, as it does after a star in a call or a list."""
    cls = type(value)
    if interp.types.lookup(cls, "__iter__") is not NULL:
        return True
    if interp.types.lookup(cls, "__getitem__") is NULL:
        interp.note_class(cls)
        return False
    if interp.types.python_level(cls, "__getitem__"):
        return True
    try:
        interp.unread(iter, value)  # a `__getitem__` of C may be for keys only
    except ObservedException:
        return False
    return True


def note_order(interp: Interpreter, value: Any) -> None:
    """The order of a set that the program made is the process's: that of hashes of texts, and of addresses."""
    if type(value) in (set, frozenset) and ordered_by_process(value):
        interp.state.guards.of_process = "the order of a set"


def get_iter(interp: Interpreter, value: Any) -> Any:
    """`iter(value)`."""
    cls = type(value)
    if cls is list or cls is tuple or cls is dict or cls is range:
        return iter(interp.shadow(value)) if interp.is_outer(value) else iter(value)
    if cls is generators.TracedGenerator or (cls is GeneratorType and outer_generators.begun(interp, value)):
        return value
    facts = interp.types
    slot = facts.slot(cls, "__iter__")
    if slot is Slot.STAND_IN:
        return interp.native(iter, value)
    if slot is Slot.PYTHON:
        result = descriptors.call_special(interp, value, "__iter__")
        if facts.lookup(type(result), "__next__") is NULL:
            raise interp.throw(TypeError(f"iter() returned non-iterator of type '{_C.type_name(type(result))}'"))
        return result
    if slot is Slot.REFUSED or slot is Slot.ABSENT:
        items = facts.slot(cls, "__getitem__")
        if slot is Slot.REFUSED or items is Slot.ABSENT:
            raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object is not iterable"))
        if items is Slot.PYTHON:
            return interp.call(polyfills.iterate_by_index, (value,))
    if slot is Slot.CONTAINER:
        note_order(interp, value)
        return interp.unread(iter, interp.shadow(value))
    interp.check_known(value)
    return interp.native(iter, value)


def next_value(interp: Interpreter, iterator: Any) -> tuple[bool, Any]:
    """One step: (True, value), or (False, value of the StopIteration)."""
    cls = type(iterator)
    traced = outer_generators.begun(interp, iterator) if cls is GeneratorType else iterator
    if type(traced) is generators.TracedGenerator:
        done, value = generators.resume(traced, None)
        return not done, value
    if not interp.types.python_level(cls, "__next__"):
        interp.check_known(iterator)
        try:
            return True, next(iterator)
        except StopIteration as stop:
            return False, stop.value
        except Exception as e:
            error = e
        raise interp.observe(error)
    try:
        return True, descriptors.call_special(interp, iterator, "__next__")
    except ObservedException as observed:
        if is_a(observed.value, StopIteration):
            return False, observed.value.value
        raise


def send_to(interp: Interpreter, receiver: object, value: object) -> tuple[bool, object]:
    """One step of `yield from`: (receiver finished, value)."""
    if type(receiver) is generators.TracedGenerator:
        return generators.resume(receiver, value)
    try:
        if value is None:
            goes_on, result = next_value(interp, receiver)
            return (not goes_on), result
        method = interp.getattr(receiver, "send")
        return False, interp.call(method, (value,))
    except ObservedException as observed:
        if is_a(observed.value, StopIteration):
            return True, observed.value.value
        raise


_EXAMPLES: Final[tuple[object, ...]] = (
    iter([]), iter(()), iter({}), iter({}.items()), iter({}.values()), iter(range(0)), iter(""), iter(set()),
    enumerate([]), zip(), reversed([]),
)  # fmt: skip
_KNOWN_ITERATORS: Final = frozenset(type(example) for example in _EXAMPLES)
_SETTLED: Final = frozenset((list, tuple, set, frozenset, dict, range, str, bytes))


def iter_next(interp: Interpreter, iterator: Any) -> Any:
    """One step of a for loop: the value or STOP."""
    if type(iterator) in _KNOWN_ITERATORS and not interp.is_outer(iterator):
        try:
            return next(iterator, STOP)
        except Exception as e:
            error = e
        raise interp.observe(error)
    goes_on, value = next_value(interp, iterator)
    return value if goes_on else STOP


def native_iterable(interp: Interpreter, value: object, hint: bool = False) -> Any:
    """Something that native code may iterate over in place of `value`.

    Arguments:
        hint: whether that code asks how long it will be.
    """
    cls = type(value)
    if hint:
        return after_hint(interp, value, native_iterable(interp, value))
    if cls is generators.TracedGenerator or cls is NativeIterator:
        return value
    if cls in _KNOWN_ITERATORS:
        interp.check_known(value)
        return value
    if is_a(value, CONTAINERS) and not interp.types.python_level(cls, "__iter__"):
        note_order(interp, value)
        return interp.shadow(value)
    iterator = get_iter(interp, value)
    if type(iterator) is GeneratorType:
        return outer_generators.begun(interp, iterator) or iterator
    if type(iterator) is generators.TracedGenerator or not interp.types.python_level(type(iterator), "__next__"):
        return iterator
    return NativeIterator(interp, iterator)


def native_elements(interp: Interpreter, value: object, exact: bool = False) -> object:
    """Something that the methods of sets may take elements from in place of `value`: they copy any set as it is.

    Arguments:
        exact: whether they ask a subclass of a set to iterate nevertheless.
    """
    if is_a(value, set | frozenset) and not exact:
        return interp.shadow(value)
    return native_iterable(interp, value)


def after_hint(interp: Interpreter, value: object, source: object) -> object:
    """What native code may iterate over in place of `value`, which has been asked how long it will be."""
    if type(value) is generators.TracedGenerator and value.gi_code is polyfills.iterate_reversed.__code__:
        sequence = generators.first_argument(value)
        if sequence is not NULL:
            _ask_size(interp, sequence)
        return source
    asks = interp.types.python_level(type(value), "__len__", "__length_hint__")
    if not asks and not is_a(value, enum.Enum):  # whose `__len__`, of the standard library, may raise too
        return source
    _ask_length(interp, value)
    return source if is_a(source, NativeIterator) else interp.unread(iter, source)


def to_list(interp: Interpreter, value: object, hint: bool = False) -> list[Any]:
    """`list(value)`.

    Arguments:
        hint: whether CPython asks here how long it will be.
    """
    source = native_iterable(interp, value, hint)
    if is_a(source, CONTAINERS) and interp.types.python_level(type(source), "__len__", "__length_hint__"):
        source = interp.unread(iter, source)
    result: list[Any] = interp.unread(list, source)
    return result


def each(interp: Interpreter, value: object) -> Iterator[object]:
    """The elements one by one: what is done with one may raise before the next is asked for."""
    iterator = value.iterator if type(value) is NativeIterator else get_iter(interp, value)
    while (item := iter_next(interp, iterator)) is not STOP:
        yield item


def is_settled(value: object) -> bool:
    """Whether iterating over this runs no code of the program."""
    return type(value) in _SETTLED


def holds_only(interp: Interpreter, value: object, kinds: frozenset[type]) -> bool:
    """Whether iterating over this runs no code of the program, and gives values of these types (int among them)."""
    if type(value) is range:
        return True
    return is_settled(value) and kinds.issuperset(map(type, native_iterable(interp, value)))


def _ask_length(interp: Interpreter, value: object) -> None:
    """PyObject_LengthHint: calls `__len__`, else `__length_hint__`, and minds only its errors."""
    lookup = interp.types.lookup
    if lookup(type(value), "__len__") is not NULL and _ask_size(interp, value):
        return
    hint = lookup(type(value), "__length_hint__")
    if hint is NULL:
        return
    try:
        length = descriptors.call_special(interp, value, "__length_hint__")
    except ObservedException as observed:
        if not is_a(observed.value, TypeError):
            raise
        return
    if length is NotImplemented:
        return
    if not is_a(length, int):
        raise interp.throw(TypeError(f"__length_hint__ must be an integer, not {_C.type_name(type(length))}"))
    if length < 0:
        raise interp.throw(ValueError("__length_hint__() should return >= 0"))


def _ask_size(interp: Interpreter, value: object) -> bool:
    """`len(value)` where a TypeError means that there is no answer."""
    try:
        interp.call(len, [value])
    except ObservedException as observed:
        if not is_a(observed.value, TypeError):
            raise
        return False
    return True


def unpack(interp: Interpreter, value: object, count: int) -> list[object]:
    """`a, b = value`."""
    cls = type(value)
    if cls is tuple or cls is list:
        values = interp.shadow(value)
        if len(values) == count:
            return list(values)
    elif not is_iterable(interp, value):
        raise interp.throw(TypeError(f"cannot unpack non-iterable {_C.type_name(cls)} object"))
    iterator = get_iter(interp, value)
    items: list[object] = []
    while len(items) < count:
        item = iter_next(interp, iterator)
        if item is STOP:
            raise interp.throw(ValueError(f"not enough values to unpack (expected {count}, got {len(items)})"))
        items.append(item)
    if iter_next(interp, iterator) is not STOP:
        raise interp.throw(ValueError(f"too many values to unpack (expected {count})"))
    return items


def unpack_star(interp: Interpreter, value: object, before: int, after: int) -> list[object]:
    """`a, *b, c = value`."""
    if not is_iterable(interp, value):
        raise interp.throw(TypeError(f"cannot unpack non-iterable {_C.type_name(type(value))} object"))
    items: list[object] = []
    iterator = get_iter(interp, value)
    while len(items) < before:
        item = iter_next(interp, iterator)
        if item is STOP:
            wanted = before + after
            raise interp.throw(
                ValueError(f"not enough values to unpack (expected at least {wanted}, got {len(items)})")
            )
        items.append(item)
    rest = to_list(interp, iterator, hint=True)
    if len(rest) < after:
        raise interp.throw(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {before + len(rest)})")
        )
    split = len(rest) - after
    return [*items, rest[:split], *rest[split:]]


# ---- dicts for ** --------------------------------------------------------------------------------------------------


def mapping_items(interp: Interpreter, values: object, by_keys: bool = False) -> Iterable[tuple[object, object]] | None:
    """Items of any mapping in its order, None if it is not one.

    Arguments:
        by_keys: subclasses of dict are asked for their keys, and for the value of each, as an OrderedDict does.
    """
    cls = type(values)
    if cls is collections.OrderedDict:
        return list(collections.OrderedDict.items(interp.shadow(values)))
    asked = by_keys and cls is not dict
    if not asked and is_a(values, dict) and interp.types.lookup(cls, "__iter__") is dict.__iter__:
        interp.note_class(cls)
        return list(dict.items(interp.shadow(values)))  # as CPython does, whatever other methods the class has
    keys = interp.try_attr(values, "keys")
    if keys is NULL:
        return None
    names = to_list(interp, interp.call(keys))
    return ((key, interp.getitem(values, key)) for key in names)


def dict_update(interp: Interpreter, target: dict[object, object], values: object) -> None:
    """`{**values}`."""
    items = mapping_items(interp, values)
    if items is None:
        raise interp.throw(TypeError(f"'{_C.type_name(type(values))}' object is not a mapping"))
    for key, value in items:
        keys.check_hash(interp, key, target)
        target[key] = value


def dict_merge(interp: Interpreter, target: dict[object, object], values: object, fn: object) -> None:
    """`fn(**values)`."""
    items = mapping_items(interp, values)
    if items is None:
        name = text.callable_name(fn)
        raise interp.throw(TypeError(f"{name} argument after ** must be a mapping, not {_C.type_name(type(values))}"))
    for key, value in items:
        keys.check_hash(interp, key, target)
        if key in target:
            name = text.callable_name(fn)
            raise interp.throw(TypeError(f"{name} got multiple values for keyword argument '{key}'"))
        target[key] = value
