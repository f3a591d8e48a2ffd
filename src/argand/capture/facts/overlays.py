"""What a capture holds back: containers of the program's that it works on copies of, and writes to other objects."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from argand.capture.facts.sources import Source
from argand.quick_dataclasses import dataclass


class _Marker:
    """A named unique value."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


DELETED = _Marker("<deleted>")
"""In an overlay: the attribute (global, cell) was deleted."""
UNSET = _Marker("<unset>")
"""From a read of an overlay: not written during capture, look at the real object."""


ADDED = frozenset(("end", "places", "items", "elements"))
"""Kinds of overlay: what is added to a container that has no shadow (`world/additions.py`)."""


@dataclass(slots=True, eq=False)
class Shadow:
    """The stand-in of a container that existed before the frame.

    Arguments:
        original: the container itself, never touched.
        shadow: a container of the same type, its elements loaded through sources.
        snapshot: what the shadow held when made (`shadows.contents`).
        source: where the original comes from.
        probe: an iterator at the end of a dict (`shadows.probe`).
    """

    original: Any
    shadow: Any
    snapshot: Any
    source: Source
    probe: object = None


@dataclass(slots=True, eq=False)
class Overlay:
    """Pending writes to one object that existed before the frame.

    Arguments:
        obj: the object (instance, cell, globals dict, or container).
        kind: "attr", "global" or "cell"; or one of `ADDED`.
        values: name -> value or DELETED, in order of first write; number, key or element -> what is added.
    """

    obj: Any
    kind: str
    values: dict[Any, Any] = field(default_factory=dict)
