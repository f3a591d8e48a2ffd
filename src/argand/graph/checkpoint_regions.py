"""Regions of a program whose values are computed again in the backward instead of being kept (checkpoints)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_region: ContextVar[object | None] = ContextVar("argand_checkpoint_region", default=None)


@contextmanager
def recomputed() -> Iterator[None]:
    """What is traced inside is a region of its own; a region inside another one is part of that."""
    token = _region.set(_region.get() or object())
    try:
        yield
    finally:
        _region.reset(token)


def current_region() -> object | None:
    """The region that code being traced is in."""
    return _region.get()
