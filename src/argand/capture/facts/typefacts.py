"""Facts about types that decide who runs an operation: the interpreter (Python-level methods) or native code."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import itertools
import re
import types
from collections.abc import Collection, Container
from typing import Any, Final

import torch

from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import module_of, per_class
from argand.capture.facts.name_tables import words
from argand.capture.facts.namespaces import Namespaces
from argand.graph.python_operators import ARITHMETIC, COMPARISONS, DIVMOD, UNARY

HEAP_TYPE: Final = 1 << 9
IMMUTABLE_TYPE: Final = 1 << 8

BUILTIN_METHODS: Final[frozenset[type]] = frozenset({types.BuiltinFunctionType, type(re.compile("").match)})
"""Types of C functions and bound methods of C classes (the second one: those that know their class)."""

ATOMS: Final[frozenset[type]] = frozenset({
    int, float, bool, complex, str, bytes, type(None), type(...), type(NotImplemented), range,
    types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
    types.GenericAlias, types.UnionType, *BUILTIN_METHODS,
})  # fmt: skip
"""Types whose operations are native and touch nothing but their operands."""

BOUND_METHODS: Final[frozenset[type]] = BUILTIN_METHODS | {types.MethodWrapperType}
"""Types of callables of C that hold the object that they belong to."""

BUFFERS: Final[tuple[type, ...]] = (bytearray, memoryview, array.array)
"""Native objects whose contents no guard looks at."""

SEQUENCES: Final[tuple[type, ...]] = (list, tuple, str, bytes, bytearray, collections.deque, range)
CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, set, frozenset, collections.deque)

_NAMESPACES: Final = frozenset({"__dict__", "__dir__"})
_get_dict: Function = type.__dict__["__dict__"].__get__
_C_FUNCTIONS: Final[tuple[type, ...]] = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    type(vars(torch._C.DispatchKeySet)["has"]),  # methods of classes of C++
)
_DUNDERS: Final[frozenset[str]] = frozenset(
    (
        *(f"__{prefix}{op.name}__" for op in ARITHMETIC.values() for prefix in ("", "r", "i")),
        *(op.method for op in (*COMPARISONS.values(), *UNARY, DIVMOD)),
        DIVMOD.reflected,
        *(
            f"__{name}__"
            for name in words(
                """
                hash bool len iter next getitem setitem delitem contains repr str format index int float complex bytes
                call getattr getattribute instancecheck subclasscheck missing reversed length_hint fspath abs round
                trunc floor ceil
                """
            )
        ),
    )
)
"""Special methods that operations look for in the class."""


_REFUSED_BY_NONE: Final[frozenset[str]] = frozenset({"__hash__", "__iter__", "__contains__", "__reversed__"})
"""Special methods of which CPython says, where they are None, that there are none; any other None is called."""


class Slot(enum.Enum):
    """Who answers a special method of the objects of a type, and so what an operation on them is."""

    PYTHON = "Python code, which is interpreted"
    SYMBOL = "a number that varies"
    STAND_IN = "torch, which records"
    CONTAINER = "C code of a builtin container"
    NATIVE = "other C code"
    REFUSED = "nobody, says the class: it is None"
    ABSENT = "nobody"


class TypeFacts:
    """Lookups along MROs, remembered. Keyed by the identity of the type, which is kept alive.

    Whatever is asked here of a class becomes a guard on it (`Access.guard_classes`): also that it lacks something.

    Arguments:
        varying: the types of numbers that vary from call to call.
    """

    def __init__(self, varying: Collection[type]) -> None:
        self.varying = varying
        self.attributes: dict[tuple[int, str], Any] = {}
        self.python: dict[int, frozenset[str]] = {}
        self.slots: dict[tuple[int, str], Slot] = {}
        self.keep: dict[int, type] = {}
        self.namespaces = Namespaces()
        self.overlay: dict[tuple[int, str], object] = {}
        self.names: set[str] = set()
        """Every name that was looked up on a class: of the guarded classes, these may not change."""
        self.whole = False
        """Whole namespaces of classes were looked at: nothing in a class may change."""
        self.benign: set[int] = set()
        self.native: set[int] = set()
        """Classes whose own special methods are torch's: of classes that derive from them, only theirs are Python."""

    def forget(self) -> None:
        """A class was changed: everything known is void."""
        self.attributes.clear()
        self.python.clear()
        self.slots.clear()

    def lookup(self, cls: type, name: str) -> Any:
        """Raw attribute along the MRO of `cls`, no descriptor run; NULL if none."""
        key = (id(cls), name)
        try:
            return self.attributes[key]
        except KeyError:
            pass
        self.rely_on(cls)
        self.names.add(name)
        if name in _NAMESPACES and issubclass(cls, type):
            self.whole = True
        value: Any = NULL
        for klass in cls.__mro__ or (cls,):  # None while the metaclass's mro() runs
            if self.overlay and (id(klass), name) in self.overlay:
                value = self.overlay[id(klass), name]
                if value is not NULL:
                    break
                continue
            value = _get_dict(klass).get(name, NULL)
            if value is not NULL:
                break
        self.attributes[key] = value
        return value

    def rely_on(self, cls: type) -> None:
        """An answer depends on the class: on its bases, or on what it has or has not."""
        if id(cls) not in self.keep:
            self.keep[id(cls)] = cls
            self.namespaces.look(filter(is_heap, cls.__mro__ or (cls,)))

    def changed_meanwhile(self, made_here: Container[int]) -> bool:
        """Whether a class changed after it was looked at, in what was looked at.

        Arguments:
            made_here: ids of classes that the program made itself.
        """
        return self.namespaces.affects(None if self.whole else self.names | _DUNDERS, made_here)

    def lookup_after(self, cls: type, after: type, name: str) -> object:
        """As `lookup`, in the part of the MRO of `cls` behind another class (what `super` does)."""
        seen = False
        self.names.add(name)
        self.rely_on(cls)
        for klass in cls.__mro__:
            if seen:
                value = self.overlay.get((id(klass), name), NULL) if self.overlay else NULL
                if value is NULL:
                    value = _get_dict(klass).get(name, NULL)
                if value is not NULL:
                    return value
            elif klass is after:
                seen = True
        return NULL

    def holder_after(self, cls: type, after: type, name: str, value: object) -> type | None:
        """The class in whose own namespace `lookup_after` found a value; None if it is in none."""
        behind = itertools.dropwhile(lambda klass: klass is not after, cls.__mro__)
        next(behind, None)
        return next((klass for klass in behind if _get_dict(klass).get(name, NULL) is value), None)

    def python_dunders(self, cls: type) -> frozenset[str]:
        """Special methods of `cls` that are Python code: operations that use them must be interpreted."""
        names = self.python.get(id(cls))
        if names is None:
            self.rely_on(cls)
            names = self.python[id(cls)] = self._python_dunders(cls)
        return names

    def _python_dunders(self, cls: type) -> frozenset[str]:
        if cls in ATOMS or not cls.__flags__ & HEAP_TYPE:
            return frozenset()
        names = set()
        seen = set()
        for klass in cls.__mro__ or (cls,):
            if id(klass) in self.native:
                break
            # enum's own special methods are pure functions of the member, which is a constant.
            pure = module_of(klass) == "enum" and issubclass(klass, enum.Enum)
            written = {name: value for (owner, name), value in self.overlay.items() if owner == id(klass)}
            for name, value in {**_get_dict(klass), **written}.items():
                if name in _DUNDERS and name not in seen:
                    seen.add(name)
                    refuses = value is None and name in _REFUSED_BY_NONE
                    if not pure and not refuses and not isinstance(value, _C_FUNCTIONS):
                        names.add(name)
        return frozenset(names)

    def python_level(self, cls: type, *names: str) -> bool:
        """Whether any of the special methods is Python code."""
        python = self.python_dunders(cls)
        return bool(python) and any(name in python for name in names)

    def slot(self, cls: type, name: str) -> Slot:
        """Who answers a special method."""
        slot = self.slots.get((id(cls), name))
        if slot is None:
            slot = self.slots[id(cls), name] = self._slot(cls, name)
        return slot

    def _slot(self, cls: type, name: str) -> Slot:
        if name in self.python_dunders(cls):
            return Slot.PYTHON
        if cls in self.varying:
            return Slot.SYMBOL
        if issubclass(cls, torch.Tensor):
            return Slot.STAND_IN
        held = self.lookup(cls, name)
        if held is NULL:
            return Slot.ABSENT
        if held is None:
            return Slot.REFUSED
        return Slot.CONTAINER if issubclass(cls, CONTAINERS) else Slot.NATIVE

    def claims_a_class(self, cls: type) -> bool:
        """Whether reading `__class__` of an instance runs code of the program, or of a proxy."""
        getter = self.lookup(cls, "__getattribute__")
        if isinstance(getter, types.FunctionType) or finds_attributes_its_own_way(cls):
            return True
        return self.lookup(cls, "__class__") is not object.__dict__["__class__"] and not issubclass(cls, type)


def is_heap(cls: type) -> bool:
    """Made by a class statement (or the like): its attributes can be changed."""
    flags = cls.__flags__
    return bool(flags & HEAP_TYPE) and not flags & IMMUTABLE_TYPE


def is_native(cls: type) -> bool:
    """Made by C code, which may keep state in the instances (some such classes are heap types, more in each Python)."""
    if not is_heap(cls):
        return True
    new = _get_dict(cls).get("__new__")
    return isinstance(new, types.BuiltinFunctionType) and new.__self__ is cls


@per_class
def finds_attributes_its_own_way(cls: type) -> bool:
    """Whether C code of the class, and not that of `object`, reads attributes: of a proxy, of a thread's namespace."""
    return _own_way(cls, "__getattribute__", type | types.ModuleType | super, 0)


@per_class
def sets_attributes_its_own_way(cls: type) -> bool:
    """The same for writing them."""
    return _own_way(cls, "__setattr__", type, 1)


def _own_way(cls: type, name: str, known: Any, which: int) -> bool:
    method = next(_get_dict(base)[name] for base in cls.__mro__ if name in _get_dict(base))
    if type(method) is not types.WrapperDescriptorType or issubclass(cls, known):
        return False
    return not _C.generic_attributes(method.__objclass__)[which]


_VALUES: Final[tuple[type, ...]] = (
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, re.Match,
)  # fmt: skip
"""Classes of C whose objects never change: with all their state, which object it is tells them apart."""
_BASES: Final = frozenset((int, float, complex, str, bytes))


def is_foreign_value(cls: type) -> bool:
    """Whether objects of a class of C are values, which do not change: identity tells them apart. So is what functions
    of pybind11 are bound to, their own overloads, and what says how a tree of optree's is built."""
    return issubclass(cls, _VALUES) or module_of(cls) == "pybind11_builtins" or is_tree_structure(cls)


def is_tree_structure(cls: type) -> bool:
    """Whether objects of a class of C++ say how trees are built."""
    return cls.__name__ == "PyTreeSpec" and module_of(cls) == "optree"


def is_immutable_base(cls: type) -> bool:
    """A number, str or bytes: what an object of a class that derives from it holds as such never changes."""
    return cls in _BASES
