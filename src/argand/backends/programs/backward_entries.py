"""Entries of the disk cache that tell of a backward: `stored_backward` writes them, `stored_functions` reads them."""

from __future__ import annotations

import contextlib
import marshal
from typing import Any

from argand.errors import CacheError
from argand.runtime import cache

_FORMAT = 4


def write(key: str, content: dict[str, Any]) -> None:
    """Write an entry anew; nothing depends on whether that works."""
    cache.keep(key, marshal.dumps((_FORMAT, content)), cache.OUTCOME)


def read(key: str) -> dict[str, Any]:
    """The content of an entry.

    Raises:
        CacheError: it is not there any more.
    """
    data = cache.find(key, cache.OUTCOME)
    with contextlib.suppress(ValueError, EOFError, TypeError):
        version, content = marshal.loads(data or b"")
        if version == _FORMAT:
            return dict(content)
    raise CacheError(f"the backward {key} is not in the cache", remedy="it is compiled again")
