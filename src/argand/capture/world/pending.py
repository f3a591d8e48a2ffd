"""What a capture holds back, and replays where the graph ends."""

from __future__ import annotations

from argand import errors
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.overlays import Overlay, Shadow
from argand.capture.world import shadows


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
    entries: list[Shadow | Overlay] = []
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            if id(entry) in changed:
                entries.append(entry)
        elif entry.values:
            entries.append(entry)
    return entries


def whole_globals(skip_frame: bool = False) -> errors.GraphBreak:
    """The graph break for the dict of globals that is written to, or read after names were: the two do not know of
    each other's pending writes."""
    return errors.graph_break(
        kind="globals written as a dict",
        explanation="The globals are written to both by their names and through the dict that globals() returns.",
        hints=("Write to a name: global name; name = value.",),
        skip_frame=skip_frame,
    )
