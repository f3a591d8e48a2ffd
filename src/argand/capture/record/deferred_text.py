"""Text that needs the values of tensors: formatted when the program runs, if anybody still needs it then."""

from __future__ import annotations

from typing import Any

from argand.errors import graph_break
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One replaced field of an f-string.

    Arguments:
        value: what is formatted (a stand-in, or anything else).
        conversion: "", "s", "r" or "a".
        spec: the format specification.
    """

    value: object
    conversion: str = ""
    spec: str = ""


class DeferredText:
    """A string that is not known yet. It can be stored, passed and joined into longer ones; every other use breaks.

    Arguments:
        parts: plain strings and Pieces, in order.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[str | Piece, ...]) -> None:
        self.parts = parts

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(x, str) answers as for the string it stands for
        return str

    @staticmethod
    def join(parts: list[Any]) -> DeferredText:
        """What BUILD_STRING makes of strings and deferred texts."""
        flat: list[str | Piece] = []
        for part in parts:
            flat.extend(part.parts if type(part) is DeferredText else (part,))
        return DeferredText(tuple(flat))

    def _break(self, *args: object, **kwargs: object) -> Any:
        raise graph_break(
            kind="data-dependent text",
            context="text made from a tensor",
            explanation="A string that shows the value of a tensor is needed while the graph is captured.",
        )

    __str__ = __repr__ = __format__ = __len__ = __iter__ = __contains__ = __getitem__ = __add__ = __radd__ = _break
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __mul__ = __rmul__ = __bool__ = _break
    __hash__ = _break
