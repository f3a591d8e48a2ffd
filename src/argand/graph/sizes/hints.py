"""Likely values of size symbols, for decisions of cost, never of correctness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST = 32  # code for many sizes must not suit only the small one that happened to come first

_hints: ContextVar[Mapping[str, int]] = ContextVar("argand_size_hints")


@contextmanager
def size_hints(hints: Mapping[str, int]) -> Iterator[None]:
    """Inside, `likely` answers from `hints` (symbol name -> value)."""
    token = _hints.set(hints)
    try:
        yield
    finally:
        _hints.reset(token)


def likely(name: str, default: int) -> int:
    """A likely value of a symbol."""
    hint = _hints.get({}).get(name)
    return default if hint is None else max(hint, _LEAST)
