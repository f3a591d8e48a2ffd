"""Iterators over dicts and sets, rebuilt as what they are: over the same container, at the same place.

Such an iterator remembers the size of its container, and a program that changes the container while it iterates sees
an error; a list of what is left would go on instead. Where that cannot be had (the container has changed since, its
final contents are only written later, or a set would come out in another order), the graph breaks where the iterator
is made.
"""

from __future__ import annotations

import collections
import gc
from typing import Any

from argand.capture.facts import classify
from argand.capture.facts.kinds import is_a
from argand.capture.output import rebuild
from argand.capture.output.values import Values
from argand.capture.world.pending_effects import changed_shadows

_ODICT: Any = collections.OrderedDict()
_KINDS: dict[type, tuple[str, bool]] = {
    type(iter({})): ("keys", False),
    type(iter({}.values())): ("values", False),
    type(iter({}.items())): ("items", False),
    type(reversed({})): ("keys", True),
    type(reversed({}.values())): ("values", True),
    type(reversed({}.items())): ("items", True),
}
_SET_ITERATOR: type = type(iter(set()))
_ODICT_ITERATOR: type = type(iter(_ODICT))
TYPES: frozenset[type] = frozenset({*_KINDS, _SET_ITERATOR, _ODICT_ITERATOR})
"""Kinds of iterator that `push` rebuilds."""


def push(values: Values, obj: object) -> str:
    """-> an iterator like `obj`. Returns why it cannot be made (nothing is emitted then), "" where it can."""
    owner = next((held for held in gc.get_referents(obj) if is_a(held, dict | set | frozenset)), None)
    if owner is None:
        _push_exhausted(values, obj)
        return ""
    try:
        left = list(obj.__reduce__()[1][0])
    except RuntimeError:
        return "over a container whose size has changed"
    if hasattr(obj, "__length_hint__") and len(left) != obj.__length_hint__():
        return "over a container that has changed"
    if id(owner) in values.plan.cyclic or any(entry.shadow is owner for entry in changed_shadows(values.state)):
        return "over a container that has changed"  # it would be made before the container gets its contents
    consumed = len(owner) - len(left)
    place = _place(owner, obj, left, consumed)
    if place is None:
        return "in an order that a copy may not have"
    values.push(owner)
    values.emitter.call_helper(rebuild.iterator_at, (*place, consumed))
    return ""


def _push_exhausted(values: Values, obj: object) -> None:
    if type(obj) is _SET_ITERATOR:
        values.asm.build_set(0)
        values.emitter.call_helper(rebuild.iterator_at, ("", False, 0))
    elif type(obj) is _ODICT_ITERATOR:
        values.emitter.asm.build_map(0)
        values.emitter.call_helper(rebuild.new_dict, (collections.OrderedDict,))
        values.emitter.call_helper(rebuild.iterator_at, ("odict keys", False, 0))
    else:
        values.asm.build_map(0)
        values.emitter.call_helper(rebuild.iterator_at, (*_KINDS[type(obj)], 0))
    values.emitter.call_helper(rebuild.exhausted)


def _place(owner: Any, obj: object, left: list[object], consumed: int) -> tuple[str, bool] | None:
    """What kind of iterator over `owner` has `left` to come; None where none surely has."""
    if type(obj) is _SET_ITERATOR:
        known = consumed == 0 or keeps_order(owner) or (type(owner) in (set, frozenset) and copy_keeps_order(owner))
        return ("", False) if known else None
    if type(obj) is not _ODICT_ITERATOR:
        walk = _KINDS[type(obj)]
        return walk if _same(rebuild.all_of(owner, *walk)[consumed:], left) else None
    kinds = [(f"odict {name}", backwards) for name in ("keys", "values", "items") for backwards in (False, True)]
    fitting = [kind for kind in kinds if _same(rebuild.all_of(owner, *kind)[consumed:], left)]
    return fitting[0] if len(fitting) == 1 else None


def _same(some: list[object], others: list[object]) -> bool:
    """Whether two lists hold the same objects (items of dicts: pairs of the same objects)."""
    return len(some) == len(others) and all(
        one is other
        or (type(one) is tuple and type(other) is tuple and len(one) == 2 and [*map(id, one)] == [*map(id, other)])
        for one, other in zip(some, others)
    )


def keeps_order(items: Any) -> bool:
    """Whether a set made by adding the elements of this one in its order has the same order.

    Elements that are rebuilt with another hash (local instances) may come anywhere.
    """
    order = list(frozenset.__iter__(items) if is_a(items, frozenset) else set.__iter__(items))
    if len(order) < 2:
        return True
    if not all(_hashed_by_value(item) for item in order):
        return False
    return all(one is other for one, other in zip(order, set(order)))


def copy_keeps_order(items: set[object] | frozenset[object]) -> bool:
    """Whether a set of constants comes out in the same order as a copy of a copy of it."""
    first = set(items)  # in two steps, as the rebuilt set is made
    copy = set(first)
    return all(map(_hashed_by_value, items)) and all(one is other for one, other in zip(items, copy))


def _hashed_by_value(item: object) -> bool:
    if type(item) is tuple:
        return all(_hashed_by_value(part) for part in item)
    return classify.is_constant(item)
