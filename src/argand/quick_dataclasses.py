"""`dataclass` as the standard library's, made in an eighth of its time: a first call makes 300 such classes.

The standard library compiles each method of each class by itself. Here the methods of all classes are the same few
functions, but for `__init__`, which is compiled when the first object is made: many classes of a process have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

_Method = Callable[..., Any]


def _quick(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    slots: bool = False,
    weakref_slot: bool = False,
    kw_only: bool = False,
) -> Any:
    def made_one(cls: type[Any]) -> type[Any]:
        given = {name for name, value in cls.__dict__.items() if value is not None}
        cls = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot, kw_only=kw_only
        )(cls)
        for name, method in _methods(cls, frozen, eq, repr).items():
            if name not in given:
                setattr(cls, name, method)
        return cls

    return made_one if cls is None else made_one(cls)


def _methods(cls: type[Any], frozen: bool, eq: bool, repr: bool) -> dict[str, _Method | None]:
    """What the class gets, where it has none of its own."""
    methods: dict[str, _Method | None] = {"__init__": _first_init(cls, frozen)}
    if repr:
        methods["__repr__"] = _repr
    if eq:
        values = _values(cls)
        methods["__eq__"] = _equal(values)
        methods["__hash__"] = _hash(values) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _refusals(cls)
        if "__slots__" in cls.__dict__:
            methods["__getstate__"], methods["__setstate__"] = _state, _set_state
    return methods


def _values(cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Gives what is compared of an object."""
    names = [each.name for each in fields(cls) if each.compare]
    if not names:
        return lambda self: ()
    return attrgetter(*names, *names[-1:])  # of one name alone it would give no tuple


def _equal(values: Callable[[Any], tuple[Any, ...]]) -> _Method:
    def __eq__(self: Any, other: Any) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> _Method:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refusals(cls: type[Any]) -> tuple[_Method, _Method]:
    """`__setattr__` and `__delattr__` of a frozen class; what a subclass adds may change."""
    names = frozenset(each.name for each in fields(cls))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _repr(self: Any) -> str:
    parts = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
    return f"{self.__class__.__qualname__}({', '.join(parts)})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state):
        object.__setattr__(self, each.name, value)


# ---------------------------------------------------------------------- __init__


def _first_init(cls: type[Any], frozen: bool) -> _Method:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init = _init(cls, frozen)
        cls.__init__ = init
        init(self, *args, **kwargs)

    return __init__


def _init(cls: type[Any], frozen: bool) -> _Method:
    names: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    lines = []
    arguments: dict[bool, list[str]] = {False: [], True: []}
    for number, each in enumerate(fields(cls)):
        default, value = _default(each, f"_{number}", names)
        if each.init:
            arguments[bool(each.kw_only)].append(each.name + default)
        elif not default:
            continue
        slot = getattr(cls, each.name, None) if frozen else None
        if isinstance(slot, MemberDescriptorType):  # quicker than `object.__setattr__`
            names[f"_set_{number}"] = slot.__set__
            lines.append(f" _set_{number}(self, {value})")
        else:
            lines.append(f" _set(self, {each.name!r}, {value})" if frozen else f" self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    keywords = ["*", *arguments[True]] if arguments[True] else []
    head = ", ".join(["self", *arguments[False], *keywords])
    exec("\n".join([f"def __init__({head}):", *(lines or [" pass"])]), names)
    init: _Method = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _default(each: Field[Any], name: str, names: dict[str, Any]) -> tuple[str, str]:
    """What follows the field's name in the arguments, and the text of its value."""
    if each.default is not MISSING:
        names[name] = each.default
        return f"={name}", each.name if each.init else name
    if each.default_factory is not MISSING:
        names[name] = each.default_factory
        return "=_missing", f"{each.name} if {each.name} is not _missing else {name}()" if each.init else f"{name}()"
    return "", each.name


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _quick

__all__ = ["dataclass"]
