"""What is computed once for each code object, and said once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Generic, TypeVar

from argand.bytecode.per_code import PerCode
from argand.capture.facts.name_tables import code_words

T = TypeVar("T")
P = TypeVar("P")


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
