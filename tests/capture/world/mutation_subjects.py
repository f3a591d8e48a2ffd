"""Objects whose answers change between calls: what is read of each, and what may happen to it. See mutations.py."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

Change = tuple[str, Callable[[], Any], Callable[[], Any]]


@dataclasses.dataclass
class Subject:
    """An object, expressions that read it (`o`; `x` is a tensor), and named changes with their way back."""

    o: Any
    reads: list[str]
    changes: list[Change]


SUBJECTS: dict[str, Callable[[], Subject]] = {}


def subject(make: Callable[[], Subject]) -> Callable[[], Subject]:
    SUBJECTS[make.__name__.lstrip("_")] = make
    return make


def setting(obj: Any, name: str, *values: Any) -> list[Change]:
    """`obj.name = value` for each value, and what was there (or was not) back."""
    own = vars(obj) if hasattr(obj, "__dict__") else None
    was: Any = dataclasses.MISSING
    if name in ("__name__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__class__", "__bases__"):
        was = getattr(obj, name)
    elif own is not None and name in own:
        was = own[name]
    elif not isinstance(obj, type):
        meta = getattr(type(obj), name, None)  # a slot or the like
        if own is None or hasattr(type(meta), "__set__"):
            was = getattr(obj, name, dataclasses.MISSING)

    def back() -> None:
        if was is dataclasses.MISSING:
            delattr(obj, name)
        else:
            setattr(obj, name, was)

    what = getattr(obj, "__name__", type(obj).__name__)
    return [
        (f"{what}.{name} = value {i}", functools.partial(setattr, obj, name, v), back) for i, v in enumerate(values)
    ]


def deleting(obj: Any, name: str) -> Change:
    was = vars(obj)[name]
    return (f"del {getattr(obj, '__name__', type(obj).__name__)}.{name}", lambda: delattr(obj, name),
            lambda: setattr(obj, name, was))  # fmt: skip


def item(container: Any, key: Any, value: Any) -> Change:
    missing = object()
    try:
        was = container[key]
    except (KeyError, IndexError):
        was = missing

    def back() -> None:
        if was is missing:
            del container[key]
        else:
            container[key] = was

    return (f"[{key!r}] = {value!r}"[:60], functools.partial(operator.setitem, container, key, value), back)


# ---- descriptors ---------------------------------------------------------------------------------------------------


@subject
def _slots() -> Subject:
    class Slotted:
        __slots__ = ("__weakref__", "a", "b")

    o = Slotted()
    o.a = 2.0
    return Subject(
        o,
        ["x * o.a", "getattr(o, 'b', 5.0)", "hasattr(o, 'b')"],
        [
            *setting(o, "a", 3.0),
            *setting(Slotted, "a", 7.0),
            ("o.b", lambda: setattr(o, "b", 1.0), lambda: delattr(o, "b")),
        ],
    )


@subject
def _property_subclass() -> Subject:
    class P(property):
        pass

    class C:
        value = 2.0

        @P
        def scale(self) -> Any:
            return self.value

    return Subject(
        o := C(),
        ["x * o.scale", "hasattr(o, 'scale')", "type(o).scale.__doc__", "type(o).scale.fget is None"],
        [*setting(o, "value", 3.0), *setting(C, "value", 4.0), *setting(C, "scale", P(lambda s: 9.0), 6.0),
         *setting(P, "__get__", lambda s, o, c=None: 8.0)],
    )  # fmt: skip


@subject
def _property_with_state() -> Subject:
    class P(property):
        factor = 1.0

        def __get__(self, obj: Any, owner: Any = None) -> Any:
            return self if obj is None else super().__get__(obj, owner) * self.factor

    class C:
        value = 2.0
        scale = P(lambda self: self.value)

    return Subject(
        C(),
        ["x * o.scale"],
        [*setting(C.__dict__["scale"], "factor", 3.0), *setting(P, "factor", 4.0), deleting(P, "__get__")],
    )


@subject
def _method_kinds() -> Subject:
    class CM(classmethod):
        pass

    class SM(staticmethod):
        pass

    class C:
        k = 2.0

        @CM
        def a(cls) -> Any:
            return cls.k

        @SM
        def b() -> Any:
            return C.k + 1

    return Subject(
        C(),
        ["x * o.a()", "x * o.b()", "x * type(o).a()"],
        [*setting(C, "k", 3.0), *setting(C, "a", CM(lambda c: 7.0), SM(lambda: 8.0)), *setting(C, "b", lambda s: 9.0),
         *setting(CM, "__get__", lambda s, o, c=None: lambda: 11.0), *setting(SM, "__get__", lambda s, o, c=None: lambda: 12.0)],
    )  # fmt: skip


@subject
def _cached_property() -> Subject:
    class CP(functools.cached_property):
        pass

    class C:
        k = 2.0

        @functools.cached_property
        def a(self) -> Any:
            return self.k

        @CP
        def b(self) -> Any:
            return self.k + 1

    o = C()
    a = C.__dict__["a"]
    return Subject(
        o,
        ["x * o.a", "x * o.b", "hasattr(o, 'a')"],
        [("k", lambda: (o.__dict__.clear(), setattr(o, "k", 5.0)), lambda: o.__dict__.clear()),
         ("cached", lambda: o.__dict__.update(a=9.0, b=8.0), lambda: o.__dict__.clear()),
         ("func", lambda: (o.__dict__.clear(), setattr(a, "func", lambda s: 6.0)),
          lambda: (o.__dict__.clear(), setattr(a, "func", lambda s: s.k))),
         ("__set__", lambda: (o.__dict__.clear(), setattr(CP, "__set__", lambda *a: None), o.__dict__.update(b=4.0)),
          lambda: (o.__dict__.clear(), delattr(CP, "__set__")))],
    )  # fmt: skip


@subject
def _user_descriptor() -> Subject:
    class D:
        k = 2.0

        def __get__(self, obj: Any, owner: Any = None) -> Any:
            return self.k

    class Plain:
        pass

    class C:
        a = D()
        b: Any = Plain()

    o = C()
    o.__dict__.update(a=5.0, b=6.0)
    return Subject(
        o,
        ["x * o.a", "x * o.b", "x * type(o).a", "hasattr(o, 'b')"],
        [*setting(D, "__set__", lambda *a: None), *setting(D, "__delete__", lambda *a: None), *setting(D, "k", 3.0),
         *setting(C.__dict__["a"], "k", 4.0), *setting(Plain, "__get__", lambda *a: 7.0), deleting(D, "__get__"),
         ("both", lambda: (setattr(Plain, "__get__", lambda *a: 8.0), setattr(Plain, "__set__", lambda *a: None)),
          lambda: (delattr(Plain, "__get__"), delattr(Plain, "__set__"))), deleting(o, "a")],
    )  # fmt: skip


@subject
def _partialmethod() -> Subject:
    class C:
        k = 2.0

        def f(self, x: Any, n: float) -> Any:
            return x * self.k * n

        g = functools.partialmethod(f, n=3.0)

        @functools.singledispatchmethod
        def h(self, v: Any) -> Any:
            return v * self.k

    pm = C.__dict__["g"]
    return Subject(
        C(),
        ["o.g(x)", "o.h(x)"],
        [*setting(C, "k", 4.0), *setting(pm, "keywords", {"n": 5.0}), *setting(pm, "func", lambda s, x, n: x + n),
         *setting(C, "g", functools.partialmethod(lambda s, x: x + 1)),
         ("register", lambda: C.__dict__["h"].register(torch.Tensor, lambda s, v: v + 9), lambda: None)],
    )  # fmt: skip


@subject
def _ctypes() -> Subject:
    class Inner(ctypes.Structure):
        _fields_ = (("v", ctypes.c_int),)

    class S(ctypes.Structure):
        _fields_ = (("a", ctypes.c_double), ("b", ctypes.c_int), ("i", Inner), ("r", ctypes.c_int * 3))

    o = S(2.0, 3)
    return Subject(
        o,
        ["x * o.a", "x * (o.b + 1)", "x * (o.i.v + 1)", "x * (o.r[1] + 1)"],
        [*setting(o, "a", 5.0), *setting(o, "b", 6),
         ("inner", lambda: setattr(o.i, "v", 7), lambda: setattr(o.i, "v", 0)), item(o.r, 1, 8)],
    )  # fmt: skip


@subject
def _ctypes_scalar() -> Subject:
    o = ctypes.c_double(2.0)
    return Subject(o, ["x * o.value", "bool(o)"], setting(o, "value", 3.0, 0.0))
