"""What native formatting is given in place of an object whose text is Python's affair, or whose attributes it reads."""

from __future__ import annotations

from typing import Any

PLAIN_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))
"""Their attributes and items are C code's, and nothing else is reached through them."""


class TextProxy:
    """Stands for an object in native formatting: its Python-level text methods are interpreted."""

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

    def __getitem__(self, key: Any) -> Any:
        return self._interp.textual_field(self._interp.enter(_getitem, (self._value, key), {}))

    def __float__(self) -> float:
        return float(self._interp.enter(float, (self._value,), {}))

    def __int__(self) -> int:
        return int(self._interp.enter(int, (self._value,), {}))

    def __index__(self) -> int:
        return int(self._interp.enter(int, (self._value,), {}))


def _getitem(value: Any, key: Any) -> Any:
    return value[key]
