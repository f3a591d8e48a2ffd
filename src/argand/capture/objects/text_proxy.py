"""What native formatting is given in place of an object whose text is Python's affair, or whose attributes it reads."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any, Final

from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Access
from argand.capture.facts.kinds import held_items, is_a
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.world.native_reads import unseen_object

PLAIN_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))
"""Their attributes and items are C code's, and nothing else is reached through them."""


class TextProxy:
    """Stands for an object in native formatting: its Python-level text methods are interpreted.

    Formatting names the class of what it refuses, and tells numbers and mappings by their methods: `standing_for` makes
    a class of the same name with those of them that the object has.
    """

    __slots__ = ("_interp", "_value")

    def __init__(self, interp: Access, value: object) -> None:
        object.__setattr__(self, "_interp", interp)
        object.__setattr__(self, "_value", value)

    def __str__(self) -> str:
        return str(_entered(self, str))

    def __repr__(self) -> str:
        return str(_entered(self, repr))

    def __format__(self, spec: str) -> str:
        return str(_entered(self, format, spec))

    def __getattribute__(self, name: str) -> object:  # also what every object has: `{0.__class__}`, `{0.__dict__[k]}`
        return _field(self, getattr, name)


def _entered(proxy: TextProxy, function: Callable[..., object], *args: object) -> Any:
    """`function(value, *args)`, interpreted."""
    interp: Any = object.__getattribute__(proxy, "_interp")
    return interp.enter(function, (object.__getattribute__(proxy, "_value"), *args), {})


def _field(proxy: TextProxy, function: Callable[..., object], key: object) -> object:
    """What formatting goes on with."""
    interp: Access = object.__getattribute__(proxy, "_interp")
    return interp.textual_field(_entered(proxy, function, key))


def standing_for(interp: Access, value: object, *, as_field: bool = False) -> TextProxy:
    """A proxy of a value.

    Arguments:
        as_field: items of it may be asked for (`{0[k]}`), which a class has without a method in its own class.
    """
    cls = type(value)
    has = {name: method for name, method in _OPTIONAL.items() if interp.types.lookup(cls, name) is not NULL}
    if as_field and is_a(value, type):
        has["__getitem__"] = _item
    proxy: TextProxy = type(_C.type_name(cls), (TextProxy,), has)(interp, value)
    return proxy


def _item(proxy: Any, key: Any) -> Any:
    return _field(proxy, operator.getitem, key)


def _float(proxy: Any) -> float:
    return float(_entered(proxy, float))


def _index(proxy: Any) -> int:
    return int(_entered(proxy, operator.index))


_OPTIONAL: Final[dict[str, Callable[..., object]]] = {
    "__getitem__": _item, "__float__": _float, "__int__": lambda proxy: int(_entered(proxy, int)), "__index__": _index,
}  # fmt: skip


# ------------------------------------------------------------------------------------------- what texts are made of

_TEXT_METHODS = frozenset(("__str__", "__repr__", "__format__", "__index__", "__int__", "__float__"))
_TEXTS_OF_ATTRIBUTES = (BaseException, types.ModuleType, type)  # read as a program reads them


def textual(interp: Access, obj: object, copies: dict[int, object]) -> object:
    """See `Access.textual`; `copies` as for `textual_items`."""
    cls = type(obj)
    if cls in interp.fast:
        return obj
    if interp.types.python_dunders(cls) & _TEXT_METHODS or is_a(obj, _TEXTS_OF_ATTRIBUTES):
        return standing_for(interp, obj)
    if not is_a(obj, CONTAINERS):
        interp.pin(obj)
    return textual_items(interp, obj, copies)


def textual_items(interp: Access, obj: object, copies: dict[int, object]) -> object:
    """See `Access.textual_items`. One that holds itself does so in its copy, whose text has an ellipsis there.

    Arguments:
        copies: of containers, by the container's id; of a tuple that is being copied, None.

    Raises:
        GraphBreak: a tuple that holds itself: there is no copy to put into it before it is whole.
    """
    if not is_a(obj, CONTAINERS):
        return obj
    if all(interp.benign(item) and not is_a(item, _TEXTS_OF_ATTRIBUTES) for item in held_items(obj)):
        return obj
    key = id(obj)
    if key in copies:
        if copies[key] is None:
            raise unseen_object(obj)
        return copies[key]
    if is_a(obj, list):
        items: list[object] = []
        copies[key] = items
        items.extend(textual(interp, item, copies) for item in list.__iter__(obj))
    elif is_a(obj, tuple):
        copies[key] = None
        copies[key] = tuple(textual(interp, item, copies) for item in tuple.__iter__(obj))
    elif type(obj) is dict:
        values: dict[object, object] = {}
        copies[key] = values
        values.update((name, textual(interp, value, copies)) for name, value in obj.items())
    return copies.get(key, obj)
