"""Classes that change between calls: subjects for mutations.py."""

from __future__ import annotations

import abc
import types
import typing
from typing import Any

from tests.capture.world.mutation_subjects import SUBJECTS, Subject, deleting, item, setting, subject

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
