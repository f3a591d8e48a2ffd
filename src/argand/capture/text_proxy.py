"""What native formatting is given in place of an object whose text is Python's affair, or whose attributes it reads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from argand._core import _C
from argand.capture.frames import NULL

PLAIN_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))
"""Their attributes and items are C code's, and nothing else is reached through them."""


class TextProxy:
    """Stands for an object in native formatting: its Python-level text methods are interpreted.

    Formatting names the class of what it refuses, and tells numbers and mappings by their methods: `standing_for` makes
    a class of the same name with those of them that the object has.
    """

    def __init__(self, interp: Any, value: Any) -> None:
        object.__setattr__(self, "_interp", interp)
        object.__setattr__(self, "_value", value)

    def __str__(self) -> str:
        return str(self._interp.enter(str, (self._value,), {}))

    def __repr__(self) -> str:
        return str(self._interp.enter(repr, (self._value,), {}))

    def __format__(self, spec: str) -> str:
        return str(self._interp.enter(format, (self._value, spec), {}))

    def __getattr__(self, name: str) -> Any:
        return self._interp.textual_field(self._interp.enter(getattr, (self._value, name), {}))


def standing_for(interp: Any, value: Any) -> TextProxy:
    """A proxy of a value."""
    cls = type(value)
    has = {name: method for name, method in _OPTIONAL.items() if interp.types.lookup(cls, name) is not NULL}
    made: TextProxy = type(_C.type_name(cls), (TextProxy,), has)(interp, value)
    return made


def _item(proxy: Any, key: Any) -> Any:
    return proxy._interp.textual_field(proxy._interp.enter(_getitem, (proxy._value, key), {}))


def _float(proxy: Any) -> float:
    return float(proxy._interp.enter(float, (proxy._value,), {}))


def _int(proxy: Any) -> int:
    return int(proxy._interp.enter(int, (proxy._value,), {}))


def _index(proxy: Any) -> int:
    return int(proxy._interp.enter(operator.index, (proxy._value,), {}))


_OPTIONAL: Final[dict[str, Callable[..., Any]]] = {
    "__getitem__": _item, "__float__": _float, "__int__": _int, "__index__": _index,
}  # fmt: skip


def _getitem(value: Any, key: Any) -> Any:
    return value[key]
