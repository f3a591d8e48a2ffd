"""What is remembered of code objects, for as long as they live.

Whatever refers to a code object for good keeps it, and with it everything that was compiled of it: functions that a
program makes anew (by `exec`, in reloaded modules) would add up.
"""

from __future__ import annotations

import functools
import weakref
from types import CodeType
from typing import Generic, TypeVar

T = TypeVar("T")


class PerCode(Generic[T]):
    """A value for each code object, told apart by identity. The value must not refer to the code."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def get(self, code: CodeType) -> T | None:
        """The value of a code object, if it has one."""
        entry = self._held.get(id(code))
        return None if entry is None else entry[1]

    def set(self, code: CodeType, value: T) -> T:
        """The value that a code object has from now on."""
        key = id(code)
        # C code all through, `dict.pop(key, reference)`: Python ignores what interrupts Python code that runs then
        self._held[key] = (weakref.ref(code, functools.partial(self._held.pop, key)), value)
        return value

    def add(self, code: CodeType, value: T) -> T:
        """The value that a code object has, or `value` from now on."""
        entry = self._held.get(id(code))
        return self.set(code, value) if entry is None else entry[1]

    def __contains__(self, code: CodeType) -> bool:
        return id(code) in self._held

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
