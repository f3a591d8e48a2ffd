"""Regions of a program whose values are computed again in the backward instead of being kept (checkpoints)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from argand.threads import bound

_region: ContextVar[object | None] = ContextVar("argand_checkpoint_region", default=None)


def recomputed() -> AbstractContextManager[None]:
    """What is traced inside is a region of its own; a region inside another one is part of that."""
    return bound(_region, _region.get() or object())


def current_region() -> object | None:
    """The region that code being traced is in."""
    return _region.get()
