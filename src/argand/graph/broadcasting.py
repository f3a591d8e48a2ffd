"""The shape that several broadcast to. Imports nothing, so that capture has it without the ATen tables."""

from __future__ import annotations

from collections.abc import Sequence


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """The shape that all broadcast to; None when they do not."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return tuple(first)
    made = [1] * max(map(len, shapes))
    for shape in shapes:
        lead = len(made) - len(shape)
        for dim, size in enumerate(shape, lead):
            if size != 1:
                if made[dim] not in (1, size):
                    return None
                made[dim] = size
    return tuple(made)
