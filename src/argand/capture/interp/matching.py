"""Structural pattern matching: the tests behind the MATCH_* opcodes."""

from __future__ import annotations

from typing import Final

from argand._core import _C
from argand.bytecode.opcodes import PY312
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import ConstSource
from argand.capture.facts.typefacts import is_heap
from argand.capture.objects import instance_checks, text
from argand.capture.objects import keys as keys_of
from argand.capture.objects.call_protocol import classes

# Flags of a type object (Py_TPFLAGS_*): documented in the C API.
_SEQUENCE = 1 << 5
_MAPPING = 1 << 6
_MATCH_SELF = 1 << 22


_CLASS: Final = "class" if PY312 else "type"  # in CPython's words


def pattern_flags(cls: type) -> int:
    """Which patterns objects of a class match: what `collections.abc.Sequence.register` and the like change."""
    return cls.__flags__ & (_SEQUENCE | _MAPPING)


def is_mapping(interp: Interpreter, subject: object) -> bool:
    return bool(_flags(interp, subject) & _MAPPING)


def is_sequence(interp: Interpreter, subject: object) -> bool:
    return bool(_flags(interp, subject) & _SEQUENCE)


def _flags(interp: Interpreter, subject: object) -> int:
    cls = classes.type_of(subject)
    flags = pattern_flags(cls)
    if is_heap(cls) and id(cls) not in interp.local_classes:
        # The version of the class does not tell of them.
        interp.state.guards.add(ConstSource(cls), "call", pattern_flags, flags, shown=False)
    return flags


def match_keys(interp: Interpreter, subject: object, keys: tuple[object, ...]) -> tuple[object, ...] | None:
    """Values of the keys, or None if one is missing."""
    values = []
    missing = interp.unread(object)  # which a `get` of the program's may look at
    seen: dict[object, None] = {}
    get = interp.getattr(subject, "get") if keys else None
    for key in keys:
        keys_of.check_hash(interp, key, seen)
        if key in seen:
            raise interp.throw(ValueError(f"mapping pattern checks duplicate key ({text.to_repr(interp, key)})"))
        seen[key] = None
        value = interp.call(get, (key, missing))
        if value is missing:
            return None
        values.append(value)
    return tuple(values)


def _attribute(interp: Interpreter, subject: object, cls: type, name: str, seen: set[str]) -> object:
    if name in seen:
        raise interp.throw(TypeError(f"{_C.type_name(cls)}() got multiple sub-patterns for attribute {name!r}"))
    seen.add(name)
    return interp.try_attr(subject, name)


def match_class(
    interp: Interpreter, subject: object, cls: object, count: int, keyword_names: tuple[str, ...]
) -> tuple[object, ...] | None:
    """Attributes for the sub-patterns of a class pattern, or None if it does not match."""
    if not is_a(cls, type):
        raise interp.throw(TypeError(f"called match pattern must be a {_CLASS}"))
    if not instance_checks.is_instance(interp, subject, cls):
        return None
    seen: set[str] = set()
    values: list[object] = []
    if count:
        match_self = False
        try:
            names = interp.plain(interp.getattr(cls, "__match_args__"))
        except ObservedException as observed:
            if not is_a(observed.value, AttributeError):
                raise
            names = ()
            match_self = bool(cls.__flags__ & _MATCH_SELF)
        if not is_a(names, tuple):
            got = _C.type_name(type(names))
            raise interp.throw(TypeError(f"{_C.type_name(cls)}.__match_args__ must be a tuple (got {got})"))
        allowed = 1 if match_self else len(names)
        if allowed < count:
            plural = "" if allowed == 1 else "s"
            raise interp.throw(
                TypeError(f"{_C.type_name(cls)}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
            )
        if match_self:
            values.append(subject)
        else:
            for name in names[:count]:
                if not is_a(name, str):
                    raise interp.throw(
                        TypeError(f"__match_args__ elements must be strings (got {_C.type_name(type(name))})")
                    )
                values.append(_attribute(interp, subject, cls, name, seen))
                if values[-1] is NULL:
                    return None
    for name in keyword_names:
        values.append(_attribute(interp, subject, cls, name, seen))
        if values[-1] is NULL:
            return None
    return tuple(values)
