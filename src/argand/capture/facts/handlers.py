"""What handlers of calls take, and how tables of them are filled: names of this Python and torch, each entered once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TypeVar

import torch

from argand.errors import InternalError

K = TypeVar("K")
H = TypeVar("H")

Function = Callable[..., Any]
"""Whatever a program calls."""
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""What it calls it with: any objects at all."""

ABSENT: Final[list[str]] = []
"""Names in tables that are not here, though no mark says that they are another version's."""
_MARKED: Final = re.compile(r"(.+)\[(python|torch)(<|>=)(\d+)\.(\d+)\]")
_VERSIONS: Final = {
    "python": sys.version_info[:2],
    "torch": tuple(int(part) for part in torch.__version__.split(".")[:2]),
}


def names_here(text: str) -> list[str]:
    """The words of a table, without those marked as another version's: `batched[python>=3.12] foo[torch<2.13]`."""
    names = []
    for word in text.split():
        mark = _MARKED.fullmatch(word)
        if mark is None:
            names.append(word)
        elif (_VERSIONS[mark[2]] < (int(mark[4]), int(mark[5]))) == (mark[3] == "<"):
            names.append(mark[1])
    return names


def enter(table: MutableMapping[K, H], key: K, handler: H) -> None:
    """Enter a handler.

    Raises:
        InternalError: there is another one: which of the two holds would depend on the order of imports.
    """
    known = table.setdefault(key, handler)
    if known is not handler:
        raise InternalError(f"{key!r} has two handlers: {known!r} and {handler!r}")
