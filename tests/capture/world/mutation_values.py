"""Containers, modules and other values that change between calls: subjects for mutations.py."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import weakref
from typing import Any

from tests.capture.world.mutation_subjects import Subject, item, setting, subject

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
