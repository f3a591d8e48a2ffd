"""What a capture holds back: containers of the program's that it works on copies of, and writes to other objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from argand import errors
from argand.capture.facts.sources import Source
from argand.capture.world import shadows

if TYPE_CHECKING:
    from argand.capture.interp.state import CaptureState


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
    probe: Any = None


@dataclass(slots=True, eq=False)
class Overlay:
    """Pending writes to one object that existed before the frame.

    Arguments:
        obj: the object (instance, cell, or globals dict).
        kind: "attr", "global" or "cell".
        values: name -> value or DELETED, in order of first write.
    """

    obj: Any
    kind: str
    values: dict[str, Any] = field(default_factory=dict)


def changed_shadows(state: CaptureState) -> list[Shadow]:
    """Shadows whose contents differ from what they held when made."""
    return [
        entry
        for entry in state.effect_order
        if isinstance(entry, Shadow)
        and (
            not shadows.same_contents(state, entry.snapshot, shadows.contents(entry.shadow))
            or shadows.reinserted(entry)
        )
    ]


def pending(state: CaptureState) -> list[Shadow | Overlay]:
    """Everything to replay, in order."""
    changed = {id(entry) for entry in changed_shadows(state)}
    found: list[Shadow | Overlay] = []
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            if id(entry) in changed:
                found.append(entry)
        elif entry.values:
            found.append(entry)
    return found


def whole_globals(skip_frame: bool = False) -> errors.GraphBreak:
    """The graph break for the dict of globals that is written to, or read after names were: the two do not know of
    each other's pending writes."""
    return errors.graph_break(
        kind="globals written as a dict",
        explanation="The globals are written to both by their names and through the dict that globals() returns.",
        hints=("Write to a name: global name; name = value.",),
        skip_frame=skip_frame,
    )
