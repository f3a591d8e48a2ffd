"""Likely values of size symbols, for decisions of cost, never of correctness."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar

from argand.threads import bound

_LEAST = 32  # code for many sizes must not suit only the small one that happened to come first

_hints: ContextVar[Mapping[str, int]] = ContextVar("argand_size_hints")


def size_hints(hints: Mapping[str, int]) -> AbstractContextManager[None]:
    """Inside, `likely` answers from `hints` (symbol name -> value)."""
    return bound(_hints, hints)


def likely(name: str, default: int) -> int:
    """A likely value of a symbol."""
    hint = _hints.get({}).get(name)
    return default if hint is None else max(hint, _LEAST)
