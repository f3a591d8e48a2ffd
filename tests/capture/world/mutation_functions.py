"""Functions that change between calls: subjects for mutations.py."""

from __future__ import annotations

import functools
import types
from typing import Any

from tests.capture.world.mutation_subjects import Subject, deleting, item, setting, subject

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
