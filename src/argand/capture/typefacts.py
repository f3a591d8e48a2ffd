"""Facts about types that decide who runs an operation: the interpreter (Python-level methods) or native code."""

from __future__ import annotations

import array
import collections
import enum
import re
import types
from typing import Any, Final

from argand.capture.frames import NULL
from argand.capture.kinds import module_of, per_class

HEAP_TYPE: Final = 1 << 9
IMMUTABLE_TYPE: Final = 1 << 8

BUILTIN_METHODS: Final[frozenset[type]] = frozenset({types.BuiltinFunctionType, type(re.compile("").match)})
"""Types of C functions and bound methods of C classes (the second one: those that know their class)."""

ATOMS: Final[frozenset[type]] = frozenset(
    {
        int, float, bool, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice,
        types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
        types.MethodWrapperType,
        types.GenericAlias, types.UnionType, types.MappingProxyType, *BUILTIN_METHODS,
    }
)  # fmt: skip
"""Types whose operations are native and touch nothing but their operands."""

BUFFERS: Final[tuple[type, ...]] = (bytearray, memoryview, array.array)
"""Native objects whose contents no guard looks at."""

SEQUENCES: Final[tuple[type, ...]] = (list, tuple, str, bytes, bytearray, collections.deque, range)
CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, set, frozenset, collections.deque)

_NAMESPACES: Final = frozenset({"__dict__", "__dir__"})
_get_dict: Any = type.__dict__["__dict__"].__get__
_C_FUNCTIONS: Final[tuple[type, ...]] = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
_DUNDERS: Final[frozenset[str]] = frozenset(
    f"__{name}__"
    for name in [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "hash",
        "bool",
        "len",
        "iter",
        "next",
        "getitem",
        "contains",
        "repr",
        "str",
        "format",
        "index",
        "int",
        "float",
        "complex",
        "bytes",
        "call",
        "getattr",
        "getattribute",
        "instancecheck",
        "subclasscheck",
        "missing",
        "reversed",
        "length_hint",
        "fspath",
        "bytes",
        "add",
        "radd",
        "iadd",
        "sub",
        "rsub",
        "isub",
        "mul",
        "rmul",
        "imul",
        "matmul",
        "rmatmul",
        "imatmul",
        "truediv",
        "rtruediv",
        "itruediv",
        "floordiv",
        "rfloordiv",
        "ifloordiv",
        "mod",
        "rmod",
        "imod",
        "divmod",
        "rdivmod",
        "pow",
        "rpow",
        "ipow",
        "lshift",
        "rlshift",
        "ilshift",
        "rshift",
        "rrshift",
        "irshift",
        "and",
        "rand",
        "iand",
        "or",
        "ror",
        "ior",
        "xor",
        "rxor",
        "ixor",
        "neg",
        "pos",
        "abs",
        "invert",
        "round",
        "trunc",
        "floor",
        "ceil",
        "setitem",
        "delitem",
    ]
)


class TypeFacts:
    """Lookups along MROs, remembered. Keyed by the identity of the type, which is kept alive."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Any] = {}
        self.python: dict[int, frozenset[str]] = {}
        self.keep: dict[int, type] = {}
        self.overlay: dict[tuple[int, str], Any] = {}
        self.names: set[str] = set()
        """Every name that was looked up on a class: of the guarded classes, these may not change."""
        self.whole = False
        """Whole namespaces of classes were looked at: nothing in a class may change."""
        self.benign: set[int] = set()
        self.native: set[int] = set()
        """Classes whose own special methods are torch's: of classes that derive from them, only theirs are Python."""

    def forget(self) -> None:
        """A class was changed: everything known is void."""
        self.found.clear()
        self.python.clear()

    def lookup(self, cls: type, name: str) -> Any:
        """Raw attribute along the MRO of `cls`, no descriptor run; NULL if none."""
        key = (id(cls), name)
        try:
            return self.found[key]
        except KeyError:
            pass
        self.keep[id(cls)] = cls
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
        self.found[key] = value
        return value

    def lookup_after(self, mro: tuple[type, ...], after: type, name: str) -> Any:
        """As `lookup`, in the part of an MRO behind a class (what `super` does)."""
        seen = False
        self.names.add(name)
        for klass in mro:
            if seen:
                value = self.overlay.get((id(klass), name), NULL) if self.overlay else NULL
                if value is NULL:
                    value = _get_dict(klass).get(name, NULL)
                if value is not NULL:
                    return value
            elif klass is after:
                seen = True
        return NULL

    def python_dunders(self, cls: type) -> frozenset[str]:
        """Special methods of `cls` that are Python code: operations that use them must be interpreted."""
        known = self.python.get(id(cls))
        if known is None:
            self.keep[id(cls)] = cls
            known = self.python[id(cls)] = self._python_dunders(cls)
        return known

    def _python_dunders(self, cls: type) -> frozenset[str]:
        if cls in ATOMS or not cls.__flags__ & HEAP_TYPE:
            return frozenset()
        names = set()
        seen = set()
        for klass in cls.__mro__ or (cls,):
            if id(klass) in self.native:
                break
            # enum's own special methods are pure functions of the member, which is a constant.
            pure = module_of(klass) == "enum" and issubclass(klass, enum.Enum | enum.EnumMeta)
            for name, value in _get_dict(klass).items():
                if name in _DUNDERS and name not in seen:
                    seen.add(name)
                    if not pure and value is not None and not isinstance(value, _C_FUNCTIONS):
                        names.add(name)
        return frozenset(names)

    def python_level(self, cls: type, *names: str) -> bool:
        """Whether any of the special methods is Python code."""
        python = self.python_dunders(cls)
        return bool(python) and any(name in python for name in names)


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


_KNOWN_NATIVE: Final = frozenset(
    ("builtins", "types", "functools", "collections", "weakref", "_weakref", "typing", "enum")
)


@per_class
def has_foreign_state(cls: type) -> bool:
    """Whether objects of a class hold what C code of some library put there, which guards on their type do not see."""
    from argand.capture import classify

    if classify.handling_of_type(cls) != "object":
        return False
    foreign = (module_of(base) for base in cls.__mro__ if is_native(base))
    return any(
        name not in _KNOWN_NATIVE and name.partition(".")[0] not in ("torch", "numpy", "argand") for name in foreign
    )


@per_class
def is_foreign_value(cls: type) -> bool:
    """Whether objects of a class with foreign state are values, which do not change: identity tells them apart."""
    equality: Any = cls.__eq__
    return has_foreign_state(cls) and (equality is not object.__eq__ or issubclass(cls, re.Match))
