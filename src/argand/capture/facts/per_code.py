"""What is remembered of code objects, for as long as they live.

Whatever refers to a code object for good keeps it, and with it everything that was compiled of it: functions that a
program makes anew (by `exec`, in reloaded modules) would add up.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Generic, TypeVar

from argand.capture.facts.words import code_words

T = TypeVar("T")
P = TypeVar("P")


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


def of_code(fn: Callable[[CodeType, P], T]) -> _OfCode[P, T]:
    """Decorator: computed once for each code object and second argument."""
    return _OfCode(fn)


class _OfCode(Generic[P, T]):
    def __init__(self, fn: Callable[[CodeType, P], T]) -> None:
        self._fn = fn
        self._known: PerCode[dict[P, T]] = PerCode()
        functools.update_wrapper(self, fn)

    def __call__(self, code: CodeType, argument: P) -> T:
        known = self._known.get(code)
        if known is None:
            known = self._known.add(code, {})
        result = known.get(argument)
        if result is None:
            result = known[argument] = self._fn(code, argument)
        return result

    def cache_clear(self) -> None:
        """Forget everything."""
        self._known.clear()


def warn_once(warned: set[str], kind: str, text: str, code: CodeType) -> None:
    """One warning of a kind per function, which points at the function."""
    if kind not in warned:
        warned.add(kind)
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno, module=code_words(code))
