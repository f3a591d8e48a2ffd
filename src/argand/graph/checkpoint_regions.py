"""Regions of a program whose values are computed again in the backward instead of being kept (checkpoints)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeAlias

from argand.quick_dataclasses import dataclass
from argand.threads import bound

Keeps: TypeAlias = Callable[[Any, Any, Any], bool]
"""Whether the result of an operation, called with some arguments, is kept all the same."""


@dataclass(slots=True, eq=False)
class Region:
    """One of them.

    Arguments:
        keeps: what the program wants kept; None: nothing.
    """

    keeps: Keeps | None


_region: ContextVar[Region | None] = ContextVar("argand_checkpoint_region", default=None)


def recomputed(keeps: Keeps | None = None) -> AbstractContextManager[None]:
    """What is traced inside is a region of its own; a region inside another one is part of that."""
    return bound(_region, _region.get() or Region(keeps))


def region_of(func: Any, args: Any, kwargs: Any) -> Region | None:
    """The region that a call being traced is in, which computes it again."""
    region = _region.get()
    return None if region is None or (region.keeps is not None and region.keeps(func, args, kwargs)) else region
