"""The test of an object's real type."""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar, overload

T = TypeVar("T")


@overload
def is_a(obj: Any, cls: type[T]) -> TypeGuard[T]: ...
@overload
def is_a(obj: Any, cls: Any) -> bool: ...
def is_a(obj: Any, cls: Any) -> bool:
    """`isinstance` by real type only: the builtin also asks `obj.__class__`, which may run the program's own code."""
    return issubclass(type(obj), cls)
