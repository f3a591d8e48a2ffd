"""The test of an object's real type."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar, overload

T = TypeVar("T")


@overload
def is_a(obj: Any, cls: type[T]) -> TypeGuard[T]: ...
@overload
def is_a(obj: Any, cls: Any) -> bool: ...
def is_a(obj: Any, cls: Any) -> bool:
    """`isinstance` by real type only: the builtin also asks `obj.__class__`, which may run the program's own code."""
    return issubclass(type(obj), cls)


def per_class(fn: Callable[[type], T]) -> Callable[[type], T]:
    """Decorator: computed once per class, without keeping classes alive or asking metaclasses for hashes."""
    known: dict[int, tuple[weakref.ref[type], T]] = {}

    def of_class(cls: type) -> T:
        entry = known.get(id(cls))
        if entry is not None and entry[0]() is cls:
            return entry[1]
        made = fn(cls)
        key = id(cls)
        known[key] = (weakref.ref(cls, lambda ref: forget(key, ref)), made)
        return made

    def forget(key: int, ref: Any) -> None:
        entry = known.get(key)
        if entry is not None and entry[0] is ref:
            del known[key]

    return of_class
