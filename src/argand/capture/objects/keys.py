"""Keys of dicts, elements of sets, indices: what native code reads of them."""

from __future__ import annotations

import operator
import types
import weakref
from typing import Any

from argand import errors
from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import Slot
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.objects import descriptors
from argand.capture.sizes import hook_ids
from argand.capture.world import native_reads


def check_hash(interp: Interpreter, key: Any, held: object = None) -> None:
    """Before native code hashes a key and compares it with others: what that reads must be guarded.

    Arguments:
        held: the dict or set whose keys it will be compared with.

    Raises:
        GraphBreak: Python-level `__hash__` or `__eq__` answer otherwise when native code asks.
    """
    cls = type(key)
    if cls in interp.fast:
        if held is not None and id(held) in interp.odd_keys:
            _check_equal(interp, key, held)
        return
    if held is not None and hook_ids.take_key(key, interp.shadow(held)):
        interp.odd_keys[id(interp.shadow(held))] = interp.odd_keys[id(held)] = held
        return
    if cls in SYMBOLIC:
        key.number()
    python = interp.types.python_level(cls, "__hash__", "__eq__")
    if interp.types.python_level(cls, "__hash__"):
        answer = descriptors.call_special(interp, key, "__hash__")
        if is_a(answer, int) and interp.unread(hash, key) != to_hash_value(answer):
            raise _impure_key(key)
    elif is_a(key, tuple | frozenset):
        for item in interp.shadow(key):
            check_hash(interp, item)
    elif cls is weakref.ref:
        check_hash(interp, interp.call(key, ()))  # which is guarded to be what it refers to
    elif interp.is_outer(key) and native_reads.kind(cls) == native_reads.BASE:
        native_reads.guard_base(interp, key)
    else:
        interp.pin(key.__self__ if cls is types.MethodType else key)
    if python and held is not None and cls.__hash__ is not None:
        _check_equal(interp, key, held)
        interp.odd_keys[id(interp.shadow(held))] = interp.odd_keys[id(held)] = held


def _check_equal(interp: Interpreter, key: object, held: object) -> None:
    """Native code compares a key with those of its hash, by their methods: the same is done here, under guards."""
    hook_ids.compare(key, interp.shadow(held))
    hashed = interp.unread(hash, key)
    equality = interp.types.python_level
    for other in list(interp.shadow(held)):
        if other is key or interp.unread(hash, other) != hashed:
            continue
        if not (equality(type(other), "__eq__") or equality(type(key), "__eq__")):
            continue
        said = interp.equal(other, key)
        if said != bool(interp.unread(operator.eq, other, key)):
            raise _impure_key(key)


def _impure_key(key: object) -> BaseException:
    return errors.graph_break(kind="key whose hash or equality changes", context=type(key).__name__)


def to_hash_value(result: int) -> int:
    """What CPython makes of the answer of a `__hash__`: only an int that does not fit is reduced."""
    return (-2 if result == -1 else int(result)) if -(1 << 63) <= result < 1 << 63 else hash(int(result))


def native_key(interp: Interpreter, key: object) -> object:
    """A key or index that native code can use: Python-level `__index__` is interpreted first."""
    if type(key) in interp.fast:
        return key
    if type(key) is slice:
        parts = (key.start, key.stop, key.step)
        if all(type(part) in interp.fast for part in parts):
            return key
        return slice(*(_slice_bound(interp, part) for part in parts))
    if interp.types.python_level(type(key), "__index__") and not is_a(key, int):
        return to_index(interp, key)
    key = interp.plain(key)
    native_reads.check(interp, operator.getitem, (key,), "hash")
    return key


def to_index(interp: Interpreter, value: object) -> object:
    """`operator.index`, interpreted for Python-level `__index__`."""
    slot = interp.types.slot(type(value), "__index__")
    if slot is Slot.PYTHON and not is_a(value, int):  # an int is what it holds
        result = descriptors.call_special(interp, value, "__index__")
        result = result.number() if type(result) in SYMBOLIC else result
        if not is_a(result, int):
            raise interp.throw(TypeError(f"__index__ returned non-int (type {_C.type_name(type(result))})"))
        return result
    if slot is Slot.ABSENT:
        interp.note_class(type(value))
        return interp.unread(operator.index, value)  # raises
    return interp.native(operator.index, value)


def _slice_bound(interp: Interpreter, part: object) -> object:
    cls = type(part)
    if cls in interp.fast:
        return part
    if interp.types.lookup(cls, "__index__") is NULL:
        interp.note_class(cls)
        return part  # CPython raises, in words of its own for slices
    return to_index(interp, part)
