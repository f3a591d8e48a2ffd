"""How handlers are entered into tables: once."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeVar

from argand.errors import InternalError

K = TypeVar("K")
H = TypeVar("H")


def enter(table: MutableMapping[K, H], key: K, handler: H) -> None:
    """Enter a handler.

    Raises:
        InternalError: there is another one: which of the two holds would depend on the order of imports.
    """
    known = table.setdefault(key, handler)
    if known is not handler:
        raise InternalError(f"{key!r} has two handlers: {known!r} and {handler!r}")
