"""Objects whose answers change between calls: what is read of each, and what may happen to it. See mutations.py."""

from __future__ import annotations

import abc
import collections
import ctypes
import dataclasses
import enum
import functools
import operator
import types
import typing
import weakref
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


# ---- classes -------------------------------------------------------------------------------------------------------

_SPECIAL: dict[str, tuple[Any, str]] = {
    "__call__": (lambda s, *a: 7.0, "o() if callable(o) else 3.0"),
    "__getattr__": (lambda s, n: 7.0, "getattr(o, 'nothing', 3.0)"),
    "__getattribute__": (lambda s, n: 7.0, "o.held"),
    "__bool__": (lambda s: False, "1.0 if o else 2.0"),
    "__len__": (lambda s: 0, "1.0 if o else 2.0"),
    "__eq__": (lambda s, t: True, "o == 3"),
    "__ne__": (lambda s, t: False, "o != 3"),
    "__lt__": (lambda s, t: True, "o < 3"),
    "__hash__": (lambda s: 7, "hash(o) == 7"),
    "__contains__": (lambda s, t: True, "3 in o"),
    "__iter__": (lambda s: iter((1, 2)), "list(o)"),
    "__getitem__": (lambda s, k: [4.0, 5.0][k], "o[0]"),
    "__index__": (lambda s: 2, "[1.0, 2.0, 3.0][o]"),
    "__add__": (lambda s, t: 5.0, "o + 1"),
    "__radd__": (lambda s, t: 6.0, "1 + o"),
    "__iadd__": (lambda s, t: 6.5, "o.__class__.__iadd__(o, 1)"),
    "__neg__": (lambda s: 4.0, "-o"),
    "__float__": (lambda s: 4.5, "float(o)"),
    "__int__": (lambda s: 4, "int(o)"),
    "__round__": (lambda s, n=None: 4, "round(o)"),
    "__abs__": (lambda s: 4, "abs(o)"),
    "__str__": (lambda s: "text", "str(o) == 'text'"),
    "__repr__": (lambda s: "text", "repr(o) == 'text'"),
    "__format__": (lambda s, f: "text", "f'{o}' == 'text'"),
    "__enter__": (lambda s: 2.0, "hasattr(type(o), '__enter__')"),
    "__dir__": (lambda s: ["a"], "len(dir(o)) == 1"),
    "__instancecheck__": (lambda s, t: True, "isinstance(o, type(o))"),
    "__reversed__": (lambda s: iter((3, 4)), "list(reversed(o))"),
    "__length_hint__": (lambda s: 3, "__import__('operator').length_hint(o, 9)"),
    "__matmul__": (lambda s, t: 3.0, "o @ 2"),
    "__rmul__": (lambda s, t: t + 1, "x * o"),
    "__torch_function__": (classmethod(lambda c, f, t, a=(), k=None: 8.0), "torch.add(x, o)"),
    "__class_getitem__": (classmethod(lambda c, k: 9.0), "type(o)['a']"),
    "__set_name__": (lambda s, o, n: None, "hasattr(o, '__set_name__')"),
    "__divmod__": (lambda s, t: (1, 2), "divmod(o, 2)"),
    "__pow__": (lambda s, t, m=None: 3, "o ** 2"),
    "__next__": (lambda s: 3, "next(o)"),
    "__del__": (lambda s: None, "type(o)() is None"),
    "__init__": (lambda s, v=4.0: setattr(s, "made", v), "getattr(type(o)(), 'made', 1.0)"),
    "__new__": (staticmethod(lambda c: 5.0), "type(o)() == 5.0"),
    "__setattr__": (lambda s, n, v: None, "setattr(o, 'held', o.held)"),
}


def _special(name: str) -> None:
    method, read = _SPECIAL[name]

    def make() -> Subject:
        class C:
            held = 2.0

        class Sub(C):
            pass

        changes = [*setting(C, name, method), *setting(Sub, name, method)]
        if name in ("__eq__", "__bool__", "__len__", "__call__", "__contains__", "__iter__", "__add__", "__hash__"):
            changes += setting(Sub, name, None)
        return Subject(Sub(), [read], changes)

    SUBJECTS[f"gains {name}"] = make

    def make_losing() -> Subject:
        Sub = type("Sub", (), {name: method, "held": 2.0})
        was = Sub.__dict__[name]
        change = (f"del {name}", lambda: delattr(Sub, name), lambda: setattr(Sub, name, was))
        return Subject(None if name == "__del__" else object.__new__(Sub), [read], [change])

    if name not in ("__del__",):
        SUBJECTS[f"loses {name}"] = make_losing


for _name in _SPECIAL:
    _special(_name)


@subject
def _dict_with_missing() -> Subject:
    class D(dict):  # type: ignore[type-arg]
        pass

    o = D(a=2.0)
    return Subject(
        o,
        ["x * o['a']", "o['b']", "o.get('b', 3.0)", "'b' in o", "len(o)"],
        [*setting(D, "__missing__", lambda s, k: 8.0), *setting(D, "__getitem__", lambda s, k: 9.0), item(o, "b", 6.0),
         item(o, "a", 4.0), *setting(D, "get", lambda s, *a: 10.0), *setting(D, "__len__", lambda s: 11),
         *setting(D, "__contains__", lambda s, k: True)],
    )  # fmt: skip


@subject
def _dict_missing_replaced() -> Subject:
    class D(dict):  # type: ignore[type-arg]
        def __missing__(self, k: Any) -> Any:
            return 1.0

    return Subject(D(), ["x * o['b']"], [*setting(D, "__missing__", lambda s, k: 8.0), deleting(D, "__missing__")])


@subject
def _class_of_object() -> Subject:
    class A:
        k = 2.0

        def f(self) -> Any:
            return 1.0

    class B(A):
        k = 3.0

    class M(A):
        k = 4.0

    class N:
        k = 5.0

        def f(self) -> Any:
            return 6.0

    o = B()
    a = A()
    return Subject(
        types.SimpleNamespace(o=o, a=a),
        ["x * o.o.k", "x * o.o.f()", "isinstance(o.o, type(o.a))", "type(o.o).__name__", "x * o.a.k"],
        [("__class__", lambda: setattr(o, "__class__", M), lambda: setattr(o, "__class__", B)),
         ("__class__ 2", lambda: setattr(a, "__class__", N), lambda: setattr(a, "__class__", A)),
         ("__bases__", lambda: setattr(B, "__bases__", (N,)), lambda: setattr(B, "__bases__", (A,))),
         *setting(A, "f", lambda s: 7.0), *setting(B, "f", lambda s: 8.0),
         ("__dict__", lambda: setattr(o, "__dict__", {"k": 9.0, "f": lambda: 10.0}), lambda: setattr(o, "__dict__", {})),
         *setting(o, "f", lambda: 11.0), *setting(o, "k", 12.0), *setting(B, "__name__", "Other"), deleting(B, "k")],
    )  # fmt: skip


@subject
def _names_of_a_class() -> Subject:
    class A:
        """Text."""

    return Subject(
        A,
        ["o.__name__", "o.__qualname__", "o.__module__", "o.__doc__", "len(o.__mro__)", "o.__bases__[0].__name__", "repr(o)",
         "o.__dict__.get('z', 3.0)", "hasattr(o, 'z')", "len(vars(o)) > 5", "f'{o}'", "o.__annotations__"],
        [*setting(A, "__name__", "B"), *setting(A, "__qualname__", "Q"), *setting(A, "__module__", "m"),
         *setting(A, "__doc__", "other"), *setting(A, "z", 4.0), *setting(A, "__annotations__", {"a": int})],
    )  # fmt: skip


@subject
def _metaclass() -> Subject:
    class Meta(type):
        k = 2.0

        @property
        def p(cls) -> Any:
            return cls.k

        def m(cls) -> Any:
            return 1.0

    class C(metaclass=Meta):
        def __init__(self, v: float = 1.0) -> None:
            self.v = v

    class D(C):
        pass

    return Subject(
        D,
        ["x * o.k", "x * o.p", "x * o.m()", "o().v if isinstance(o(), o) else 3.0", "isinstance(x, o)", "issubclass(int, o)",
         "getattr(o, 'nothing', 4.0)", "len(o) if hasattr(type(o), '__len__') else 5.0", "bool(o)", "o == 3", "3 in {o: 1}",
         "type(o).__name__", "hasattr(o, 'late')"],
        [*setting(Meta, "k", 3.0), *setting(Meta, "p", 8.0, property(lambda c: 7.0)), *setting(Meta, "m", lambda c: 6.0),
         *setting(D, "k", 5.0), *setting(D, "m", classmethod(lambda c: 4.0)), *setting(Meta, "late", 1.0),
         *setting(Meta, "__call__", lambda c, *a: types.SimpleNamespace(v=9.0)),
         *setting(Meta, "__getattr__", lambda c, n: 11.0), *setting(Meta, "__instancecheck__", lambda c, o: True),
         *setting(Meta, "__subclasscheck__", lambda c, o: True), *setting(Meta, "__len__", lambda c: 0),
         *setting(Meta, "__bool__", lambda c: False), *setting(Meta, "__eq__", lambda c, o: True),
         *setting(Meta, "__getattribute__", lambda c, n: 12.0)],
    )  # fmt: skip


@subject
def _abstract() -> Subject:
    class Base(abc.ABC):
        pass

    class C:
        pass

    class Hooked(abc.ABC):
        pass

    def register() -> None:
        Base.register(C)

    def hook(cls: Any, other: Any) -> Any:
        return True

    o = types.SimpleNamespace(Base=Base, c=C(), Hooked=Hooked)
    return Subject(
        o,
        ["isinstance(o.c, o.Base)", "issubclass(type(o.c), o.Base)", "isinstance(o.c, o.Hooked)"],
        [("register", register, lambda: None),
         ("hook", lambda: (setattr(Hooked, "__subclasshook__", classmethod(hook)), Hooked.register(int)), lambda: None)],
    )  # fmt: skip


@subject
def _protocol() -> Subject:
    @typing.runtime_checkable
    class P(typing.Protocol):
        def f(self) -> Any: ...

    class C:
        pass

    return Subject(
        types.SimpleNamespace(p=P, c=C()),
        ["isinstance(o.c, o.p)"],
        [*setting(C, "f", lambda s: 1.0), *setting(C, "f", None)],
    )


@subject
def _mutable_class_attribute() -> Subject:
    class C:
        table: Any = {"a": 2.0}
        row: Any = [1.0, 2.0]

    return Subject(
        C(), ["x * o.table['a']", "x * o.row[0]", "len(o.row)"], [item(C.table, "a", 3.0), item(C.row, 0, 4.0),
        ("append", lambda: C.row.append(1.0), lambda: C.row.pop()), *setting(C, "row", [9.0])],
    )  # fmt: skip


# ---- functions -----------------------------------------------------------------------------------------------------


def _other_code(a: Any, b: Any = 1.0, *, c: Any = 2.0) -> Any:
    return a * b - c


@subject
def _function() -> Subject:
    def f(a: Any, b: Any = 3.0, *, c: Any = 2.0) -> Any:
        return a * b + c

    f.tag = 1.0  # type: ignore[attr-defined]
    f.__wrapped__ = _other_code  # type: ignore[attr-defined]
    return Subject(
        f,
        ["o(x)", "o(x, 4.0)", "o(x, c=5.0)", "x * o.tag", "x * o.__defaults__[0]", "x * o.__kwdefaults__['c']", "o.__name__",
         "o.__doc__", "hasattr(o, 'late')", "o.__code__.co_name", "o.__wrapped__(x)", "o.__dict__['tag']",
         "(lambda g: g(x))(o)", "list(map(o, [x]))[0]", "o.__get__(x)()", "len(o.__defaults__ or ())", "o.__annotations__"],
        [*setting(f, "__defaults__", (6.0,), None, (1.0, 7.0)), *setting(f, "__kwdefaults__", {"c": 8.0}, None),
         ("kwdefaults item", lambda: f.__kwdefaults__.update(c=9.0), lambda: f.__kwdefaults__.update(c=2.0)),
         *setting(f, "__code__", _other_code.__code__), *setting(f, "tag", 10.0), *setting(f, "__name__", "g"),
         *setting(f, "__doc__", "text"), *setting(f, "late", 1.0), *setting(f, "__wrapped__", lambda x: x + 11),
         *setting(f, "__annotations__", {"a": int})],
    )  # fmt: skip


@subject
def _function_without_defaults() -> Subject:
    def f(a: Any, b: Any) -> Any:
        return a * b

    return Subject(
        f, ["o(x, 2.0)", "o(x)", "o.__defaults__ is None"], [*setting(f, "__defaults__", (6.0,)), *setting(f, "__code__", _other_code.__code__)]
    )  # fmt: skip


@subject
def _function_with_objects_as_defaults() -> Subject:
    class C:
        k = 2.0

    c = C()

    def f(a: Any, b: Any = c, d: Any = (1.0,)) -> Any:
        return a * b.k + d[0]

    other = C()
    other.k = 9.0
    return Subject(
        f, ["o(x)"],
        [*setting(c, "k", 3.0), *setting(f, "__defaults__", (other, (1.0,)), (c, (5.0,)), (None, c, (1.0,)), (c, (1.0,)))],
    )  # fmt: skip


@subject
def _nested_functions() -> Subject:
    def innermost(a: Any, k: Any = 2.0) -> Any:
        return a * k

    def inner(a: Any) -> Any:
        return innermost(a)

    def f(a: Any) -> Any:
        return inner(a) + 1

    def other(a: Any, k: Any = 2.0) -> Any:
        return a - k

    return Subject(
        f, ["o(x)", "[o][0](x)", "{'f': o}['f'](x)"],
        [*setting(innermost, "__defaults__", (5.0,)), *setting(innermost, "__code__", other.__code__),
         ("cell", lambda: setattr(f.__closure__[0], "cell_contents", other), lambda: setattr(f.__closure__[0], "cell_contents", inner)),
         ("cell 2", lambda: setattr(inner.__closure__[0], "cell_contents", other),
          lambda: setattr(inner.__closure__[0], "cell_contents", innermost))],
    )  # fmt: skip


@subject
def _wrapped_function() -> Subject:
    def decorate(k: float) -> Any:
        def outer(fn: Any) -> Any:
            @functools.wraps(fn)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return fn(*args, **kwargs) * k

            return wrapper

        return outer

    @decorate(2.0)
    @decorate(3.0)
    def f(a: Any, b: Any = 1.0) -> Any:
        return a + b

    wrapped = f.__wrapped__.__wrapped__
    return Subject(
        f, ["o(x)", "o.__wrapped__(x)", "o.__name__"],
        [*setting(wrapped, "__defaults__", (4.0,)), *setting(wrapped, "__code__", (lambda a, b: a - b).__code__),
         ("cell", lambda: setattr(f.__closure__[1], "cell_contents", 7.0), lambda: setattr(f.__closure__[1], "cell_contents", 2.0)),
         *setting(f, "__wrapped__", lambda x: x)],
    )  # fmt: skip


@subject
def _global_of_function() -> Subject:
    space: dict[str, Any] = {"k": 2.0}
    exec("def f(x): return x * k + len([1, 2])", space)
    o = space["f"]
    return Subject(
        o, ["o(x)"],
        [item(space, "k", 5.0), item(space, "len", lambda s: 9), item(o.__builtins__ if False else space, "unrelated", 1)],
    )  # fmt: skip


@subject
def _builtin_replaced() -> Subject:
    import builtins

    return Subject(
        types.SimpleNamespace(a=[1.0, 2.0]), ["x * divmod(o.a[1], 2)[0]", "oct(8)"],
        [*setting(builtins, "divmod", lambda a, b: (7, 0)), *setting(builtins, "oct", lambda a: 9)],
    )  # fmt: skip


@subject
def _bound_method() -> Subject:
    class C:
        k = 2.0

        def f(self, a: Any, b: Any = 1.0) -> Any:
            return a * self.k + b

    c = C()
    return Subject(
        c.f,
        ["o(x)", "x * o.__self__.k", "o.__func__(o.__self__, x)", "o.__name__", "o.__func__.__defaults__"],
        [*setting(c, "k", 3.0), *setting(C, "k", 4.0), *setting(C.f, "__defaults__", (5.0,)),
         *setting(C.f, "__code__", (lambda s, a, b: a - b).__code__), *setting(C.f, "__name__", "h")],
    )  # fmt: skip


@subject
def _methods_in_class() -> Subject:
    class Base:
        def f(self, x: Any) -> Any:
            return x * 2

    class C(Base):
        def f(self, x: Any) -> Any:
            return super().f(x) + 1

        @classmethod
        def g(cls, x: Any, k: Any = 2.0) -> Any:
            return x * k

        @staticmethod
        def h(x: Any, k: Any = 2.0) -> Any:
            return x * k

        @property
        def p(self) -> Any:
            return 3.0

    o = C()
    return Subject(
        o,
        ["o.f(x)", "o.g(x)", "o.h(x)", "x * o.p", "type(o).f(o, x)"],
        [*setting(Base, "f", lambda s, x: x * 5), *setting(Base.f, "__code__", (lambda self, x: x * 6).__code__),
         *setting(C.g.__func__, "__defaults__", (7.0,)), *setting(C.h, "__defaults__", (8.0,)),
         *setting(C.__dict__["p"].fget, "__code__", (lambda self: 9.0).__code__), *setting(o, "f", lambda x: x),
         *setting(C, "f", lambda s, x: x - 1)],
    )  # fmt: skip


@subject
def _partial() -> Subject:
    def f(a: Any, b: Any = 1.0, c: Any = 2.0) -> Any:
        return a * b + c

    p = functools.partial(f, b=3.0)
    return Subject(
        p,
        ["o(x)", "o.keywords['b']", "o.func(x)", "getattr(o, 'tag', 3.0)", "len(o.args)"],
        [*setting(f, "__defaults__", (4.0, 5.0)), item(p.keywords, "b", 6.0), item(p.keywords, "c", 7.0), *setting(p, "tag", 8.0),
         ("__setstate__", lambda: p.__setstate__((_other_code, (), {"b": 9.0}, {})),
          lambda: p.__setstate__((f, (), {"b": 3.0}, {})))],
    )  # fmt: skip


@subject
def _lru_cache() -> Subject:
    class C:
        k = 2.0

    c = C()

    @functools.lru_cache(None)
    def f(n: int) -> Any:
        return c.k * n

    def change() -> None:
        f.cache_clear()
        c.k = 5.0

    def back() -> None:
        f.cache_clear()
        c.k = 2.0

    return Subject(f, ["x * o(2)"], [("state", change, back)])


@subject
def _callable_object() -> Subject:
    class C:
        k = 2.0

        def __call__(self, x: Any, b: Any = 1.0) -> Any:
            return x * self.k + b

    o = C()
    return Subject(
        o, ["o(x)", "o.__call__(x)", "callable(o)", "type(o).__call__(o, x)"],
        [*setting(o, "k", 3.0), *setting(o, "__call__", lambda x: x), *setting(C, "__call__", lambda s, x: x - 1),
         *setting(C.__call__, "__defaults__", (4.0,)), deleting(C, "__call__")],
    )  # fmt: skip


# ---- values --------------------------------------------------------------------------------------------------------


@subject
def _enum() -> Subject:
    class E(enum.Enum):
        A = 2.0
        B = 3.0

        def f(self) -> Any:
            return self.value + 1

        @property
        def p(self) -> Any:
            return self.value * 2

    o = E.A
    o.extra = 1.0  # type: ignore[attr-defined]
    return Subject(
        o,
        ["x * o.value", "x * o._value_", "x * o.f()", "x * o.p", "x * o.extra", "o.name", "x * type(o).A.value", "x * type(o)['A'].value",
         "repr(o)", "str(o)", "[m.value for m in type(o)]", "getattr(o, 'late', 3.0)", "f'{o}'"],
        [*setting(o, "_value_", 7.0), *setting(o, "extra", 8.0), *setting(o, "_name_", "Z"), *setting(o, "late", 9.0),
         *setting(E, "f", lambda s: 10.0), *setting(E, "p", property(lambda s: 11.0)), *setting(E, "__str__", lambda s: "t")],
    )  # fmt: skip


@subject
def _int_enum() -> Subject:
    class E(enum.IntEnum):
        A = 2
        B = 3

    o = E.A
    return Subject(
        o, ["x * o", "x * o.value", "o + 1", "o == 2", "o == E" if False else "o in (2, 5)", "o.name", "[1., 2., 3., 4.][o]"],
        [*setting(o, "_value_", 7), *setting(E, "__add__", lambda s, t: 9), *setting(E, "__eq__", lambda s, t: False)],
    )  # fmt: skip


@subject
def _flag() -> Subject:
    class F(enum.Flag):
        A = 1
        B = 2

    return Subject(
        F.A,
        ["x * (o | type(o).B).value", "bool(o)", "o in (type(o).A | type(o).B)", "x * (~o).value"],
        setting(F.A, "_value_", 4, 0),
    )


@subject
def _dataclass() -> Subject:
    @dataclasses.dataclass
    class D:
        a: float = 2.0
        b: Any = dataclasses.field(default_factory=lambda: [1.0])

        @property
        def p(self) -> Any:
            return self.a

    o = D()
    return Subject(
        o, ["x * o.a", "x * o.b[0]", "x * o.p", "o == type(o)()", "repr(o)", "x * type(o)().a", "__import__('dataclasses').asdict(o)['a']",
            "len(__import__('dataclasses').fields(o))", "__import__('dataclasses').replace(o, a=1.0).b"],
        [*setting(o, "a", 3.0), item(o.b, 0, 4.0), *setting(D, "a", 5.0), *setting(D.__init__, "__defaults__", (6.0, D.__init__.__defaults__[1])),
         *setting(D, "__eq__", lambda s, t: 7), ("b", lambda: setattr(o, "b", [8.0, 9.0]), lambda: setattr(o, "b", [1.0]))],
    )  # fmt: skip


@subject
def _frozen_dataclass() -> Subject:
    @dataclasses.dataclass(frozen=True, slots=True)
    class D:
        a: float = 2.0

    o = D()
    return Subject(
        o, ["x * o.a", "hash(o) == hash(type(o)())", "o == type(o)()", "{o: 1}.get(type(o)(), 2)"],
        [("a", lambda: object.__setattr__(o, "a", 3.0), lambda: object.__setattr__(o, "a", 2.0))],
    )  # fmt: skip


@subject
def _user_hash() -> Subject:
    class K:
        n = 1

        def __hash__(self) -> int:
            return self.n

        def __eq__(self, other: Any) -> Any:
            return self.n == (other.n if isinstance(other, K) else other)

    o = K()
    return Subject(
        o, ["{o: 1}.get(1)", "len({o, 3})", "len({o, 3.0})", "o in {1, 2}", "o in [3]", "[3, 1].index(o) if o in [3, 1] else 9", "{3: 5.0, 1: 6.0}[o]",
            "hash(o)", "[1, 3, 3].count(o)", "o == 3", "(o, 1) == (3, 1)", "(o,) in [(3,)]", "{(o, 1): 2}.get((1, 1), 3)", "frozenset([o]) == {3}"],
        [*setting(o, "n", 3), *setting(K, "n", 3), *setting(K, "__eq__", lambda s, t: True), *setting(K, "__hash__", lambda s: 3)],
    )  # fmt: skip


@subject
def _module_object() -> Subject:
    m = types.ModuleType("some_module")
    m.k = 2.0  # type: ignore[attr-defined]
    m.f = lambda x: x * m.k  # type: ignore[attr-defined]
    return Subject(
        m, ["x * o.k", "o.f(x)", "o.__name__", "hasattr(o, 'late')", "getattr(o, 'late', 3.0)", "o.__doc__"],
        [*setting(m, "k", 3.0), *setting(m, "f", lambda x: x), *setting(m, "late", 4.0), *setting(m, "__name__", "n"),
         *setting(m, "__getattr__", lambda n: 5.0), *setting(m, "__doc__", "d")],
    )  # fmt: skip


@subject
def _containers() -> Subject:
    class L(list):  # type: ignore[type-arg]
        pass

    o = L([1.0, 2.0])
    return Subject(
        o, ["x * o[0]", "x * len(o)", "x * sum(o)", "2.0 in o", "o == [1.0, 2.0]", "1.0 if o else 2.0", "list(o)", "x * o[-1]"],
        [item(o, 0, 5.0), ("append", lambda: o.append(9.0), lambda: o.pop()), *setting(L, "__getitem__", lambda s, k: 6.0),
         *setting(L, "__len__", lambda s: 7), *setting(L, "__contains__", lambda s, k: True), *setting(L, "__iter__", lambda s: iter([3.0])),
         *setting(L, "__eq__", lambda s, t: 8), *setting(L, "__bool__", lambda s: False)],
    )  # fmt: skip


@subject
def _weak_reference() -> Subject:
    class C:
        k = 2.0

    c = C()
    c2 = C()
    o = types.SimpleNamespace(r=weakref.ref(c), p=weakref.proxy(c), hold=[c, c2])
    return Subject(
        o, ["x * o.r().k", "x * o.p.k", "getattr(o.p, 'late', 3.0)", "hasattr(o.p, 'late')", "x * len(weak(o.hold[0]))" if False else "o.r() is o.hold[0]"],
        [*setting(c, "k", 3.0), *setting(o, "r", weakref.ref(c2)), *setting(c, "late", 4.0), *setting(C, "k", 6.0)],
    )  # fmt: skip


@subject
def _getattr_hooks() -> Subject:
    class C:
        def __getattr__(self, name: str) -> Any:
            if name == "virtual":
                return self.table["v"]
            raise AttributeError(name)

    o = C()
    o.table = {"v": 2.0}
    return Subject(
        o, ["x * o.virtual", "hasattr(o, 'gone')", "getattr(o, 'gone', 5.0)"],
        [item(o.table, "v", 3.0), *setting(o, "virtual", 4.0), *setting(C, "gone", 6.0), *setting(C, "__getattr__", lambda s, n: 7.0)],
    )  # fmt: skip


@subject
def _counting_set_name() -> Subject:
    class D:
        def __set_name__(self, owner: Any, name: str) -> None:
            self.name = "_" + name

        def __get__(self, obj: Any, owner: Any = None) -> Any:
            return getattr(obj, self.name)

        def __set__(self, obj: Any, value: Any) -> None:
            setattr(obj, self.name, value)

    class C:
        a = D()

    o = C()
    o.a = 2.0
    o._b = 9.0  # type: ignore[attr-defined]
    return Subject(o, ["x * o.a"], [*setting(o, "_a", 3.0), *setting(C.__dict__["a"], "name", "_b")])


@subject
def _subclass_of_int() -> Subject:
    class Whole(int):
        k = 2.0

        @property
        def p(self) -> Any:
            return self.k

    o = Whole(3)
    return Subject(
        o,
        ["x * o.p", "x * o", "o + 1", "x * o.k"],
        [*setting(o, "k", 5.0), *setting(Whole, "k", 6.0), *setting(Whole, "__add__", lambda s, t: 9.0)],
    )


@subject
def _default_dict() -> Subject:
    o: Any = collections.defaultdict(lambda: 2.0, a=1.0)
    return Subject(
        o,
        ["x * o['a']", "x * o.get('zz', 4.0)", "o.default_factory()"],
        [item(o, "a", 5.0), *setting(o, "default_factory", lambda: 6.0, None)],
    )


@subject
def _exception_object() -> Subject:
    e = ValueError("a", 2.0)
    return Subject(
        e, ["str(e)" if False else "str(o)", "x * o.args[1]", "repr(o)", "o.__cause__ is None", "getattr(o, '__notes__', None)"],
        [*setting(e, "args", ("b", 3.0)), ("cause", lambda: setattr(e, "__cause__", KeyError()), lambda: setattr(e, "__cause__", None)),
         ("note", lambda: e.add_note("n"), lambda: delattr(e, "__notes__"))],
    )  # fmt: skip
