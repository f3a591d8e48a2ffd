"""Whether native code may tell in which order a set is: that of hashes, which are others in each process.

What such code answers is a constant of the graph. In this process it stays right, for the set is the same one or was
made in the same way; a later process must not take it over.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from argand.capture.facts.kinds import is_a
from argand.outcomes.fingerprints import ordered_by_process

_SETS: Final = (set, frozenset)
_ALGEBRA = "and or sub xor rand ror rsub rxor iand ior isub ixor eq ne le lt ge gt contains len init new"
_CHANGES = """add discard remove clear copy difference difference_update intersection intersection_update isdisjoint
    issubset issuperset symmetric_difference symmetric_difference_update union update"""
_BLIND_METHODS: Final = frozenset([f"__{name}__" for name in _ALGEBRA.split()] + _CHANGES.split())
_KEEPING_METHODS: Final = frozenset(("append", "insert", "setdefault", "__setitem__", "__contains__", "__setattr__"))
_READING_METHODS: Final = frozenset(("get", "__getitem__", "__len__", "keys", "values", "items", "copy"))
"""Of dicts, lists and tuples: they hand on what is held, and do not look into it."""
_BLIND: Final = frozenset(
    map(id, (
        builtins.len, builtins.bool, builtins.isinstance, builtins.issubclass, builtins.type, builtins.callable,
        builtins.set, builtins.frozenset, builtins.any, builtins.all, operator.contains, operator.and_, operator.or_,
        operator.sub, operator.xor, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
        operator.iand, operator.ior, operator.isub, operator.ixor, operator.truth, operator.not_, operator.is_,
        operator.is_not, builtins.getattr, builtins.hasattr, builtins.setattr, builtins.__import__,
    ))
)  # fmt: skip
_BY_VALUE: Final = frozenset(map(id, (builtins.sorted, builtins.min, builtins.max)))
"""Of texts and numbers, what they find does not depend on the order; with a key it does, for keys may be equal."""
_HOLDERS: Final = (set, frozenset, tuple, list, dict)
_DEEP: Final = 3
_MOST: Final = 256


def may_tell(fn: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a call of native code may depend on the order of a set among its arguments, or that these hold."""
    if id(fn) in _BLIND:
        return False
    for arg in (*args, *kwargs.values(), getattr(fn, "__self__", None)):
        if issubclass(type(arg), _HOLDERS) and _holds(arg, _DEEP):
            break
    else:
        return False
    if id(fn) in _BY_VALUE:
        return bool(kwargs) or len(args) != 1 or not _is_of_texts(args[0])
    name = getattr(fn, "__name__", "")
    home = getattr(fn, "__objclass__", None) or type(getattr(fn, "__self__", None))
    if home in (dict, list, tuple) and name in _READING_METHODS:
        return False
    return name not in (_BLIND_METHODS if home in _SETS else _KEEPING_METHODS)


def _holds(value: Any, depth: int) -> bool:
    """Whether a value is a set of another order in each process, or holds one."""
    if is_a(value, _SETS):
        return type(value) not in _SETS or ordered_by_process(value)
    if not depth or type(value) not in (tuple, list, dict):
        return False
    items: Iterable[object] = value.values() if type(value) is dict else value
    if not any(issubclass(kind, _HOLDERS) for kind in set(map(type, items))):
        return False
    return len(value) > _MOST or any(_holds(item, depth - 1) for item in items)


def _is_of_texts(value: Any) -> bool:
    return type(value) in _SETS and all(type(item) is str for item in value)
