"""Many values at once in what transformed code rebuilds.

A list of a million numbers is not rebuilt by a million instructions: plain values are copied from one constant, and of
others there are so many only that emitting them takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from argand.capture.facts.kinds import is_a, raw_items, raw_length
from argand.capture.facts.typefacts import CONTAINERS

if TYPE_CHECKING:
    from argand.capture.output.reconstruct import Reconstructor

MANY: Final = 64
"""From so many plain values on they are a constant; fewer are instructions."""
MOST: Final = 100_000
"""Values that one transformed code rebuilds; elements of a container from outside that are guarded."""
_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes, type(...)))


class Values:
    """What gives a new container of the same plain values each time that transformed code calls it.

    Arguments:
        kind: list, tuple or dict.
        values: a list, or a dict.
    """

    __slots__ = ("kind", "values")

    def __init__(self, kind: type, values: list[Any] | dict[Any, Any]) -> None:
        self.kind = kind
        self.values = values

    def __call__(self) -> Any:
        return self.kind(self.values)

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} of {len(self.values):,} values>"


def push_list(values: Reconstructor, items: Iterable[Any]) -> None:
    """-> a new list of the items."""
    found = list(items)
    if _are_plain(found):
        _push_constant(values, Values(list, found))
    else:
        values.asm.build_list(values.push_each(found))


def push_tuple(values: Reconstructor, items: Iterable[Any]) -> None:
    """-> a new tuple of the items."""
    found = list(items)
    if _are_plain(found):
        _push_constant(values, Values(tuple, found))
    else:
        values.asm.build_tuple(values.push_each(found))


def push_map(values: Reconstructor, obj: dict[Any, Any]) -> None:
    """-> a new dict of what a mapping holds."""
    items = list(raw_items(obj))
    if len(items) >= MANY and _are_plain([part for item in items for part in item]):
        _push_constant(values, Values(dict, dict(items)))
        return
    for key, value in items:
        values.push(key)
        values.push(value)
    values.asm.build_map(len(items))


def largest(objects: Iterable[Any]) -> Any:
    """The container that holds most; None where there is none."""
    return max(objects, key=_length, default=None)


def _length(obj: Any) -> int:
    return raw_length(obj) if is_a(obj, CONTAINERS) else 0


def _are_plain(items: list[Any]) -> bool:
    """Whether one constant can hold them: many, and each without parts and the same in every call."""
    return len(items) >= MANY and _PLAIN.issuperset(map(type, items))


def _push_constant(values: Reconstructor, made: Values) -> None:
    values.asm.load_const_callable(made)
    values.asm.call(0)
