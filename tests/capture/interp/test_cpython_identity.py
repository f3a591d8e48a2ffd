"""Differences from CPython that its own test package found: which object it is, orders, iterators and native code.

The rest of them: test_cpython_semantics.py."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import operator
import random
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

T = torch.ones(2)


class Plain:
    def __init__(self) -> None:
        self.n = 0

    def method(self) -> None:
        pass


def follows(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """One compiled function, called with these arguments in turn, answers as eager does (exceptions too)."""
    compiled = argand.compile(fn, backend="eager")

    def said(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
        try:
            return repr(call(*args, T))
        except Exception as error:
            return repr(error)

    for args in calls:
        assert said(compiled, copy.copy(args)) == said(fn, copy.copy(args))


ONE, OTHER, THIRD = Plain(), Plain(), Plain()
TABLE = {ONE: 1, OTHER: 2}


@pytest.mark.parametrize(
    "fn",
    [
        lambda k, t: (TABLE.get(k), t + 1),
        lambda k, t: (TABLE[k], t + 1),
        lambda k, t: (k in TABLE, t + 1),
        lambda k, t: (k in set(TABLE), t + 1),
        lambda k, t: (k in list(TABLE), t + 1),
        lambda k, t: (list(TABLE).index(k), t + 1),
        lambda k, t: ({k: 1} == {ONE: 1}, t + 1),
        lambda k, t: (k == ONE, k is ONE, t + 1),
        lambda k, t: ({k, ONE} == {ONE}, (k,) == (ONE,), [k].count(ONE), t + 1),
        lambda k, t: (hash(k) == hash(ONE), id(k) == id(ONE), t + 1),
        lambda k, t: (k.method == ONE.method, t + 1),
        lambda k, t: (collections.Counter([k, ONE])[ONE], t + 1),
        lambda k, t: (str(k) == str(ONE), t + 1),
        lambda k, t: ({weakref.ref(k): 1} == {weakref.ref(ONE): 1}, t + 1),
    ],
)
def test_objects_compared_by_identity_are_guarded(fn: Callable[..., Any]) -> None:
    follows(fn, (ONE,), (OTHER,), (ONE,), (THIRD,), (ONE,))


def test_two_arguments_that_become_one() -> None:
    first, second, items, others = torch.ones(2), torch.ones(2), [1], [1]
    for a, b in ((first, second), (items, others), (ONE, OTHER), (ONE.method, OTHER.method)):
        compiled = argand.compile(lambda x, y, t: (x is y, x is x, t + 1), backend="eager")
        assert [compiled(a, b, T)[0], compiled(a, a, T)[0], compiled(a, b, T)[0]] == [False, True, False]


def test_keys_and_elements_that_are_objects_are_changed_once() -> None:
    def f(held: Any, t: torch.Tensor) -> Any:
        for key in held:
            key.n += 1
        argand.graph_break()
        return [key.n for key in held], t + 1

    for make in (lambda: {Plain(): 1}, lambda: {Plain()}, lambda: frozenset([Plain()])):
        compiled = argand.compile(f, backend="eager")
        assert compiled(make(), T)[0] == compiled(make(), T)[0] == [1]


def test_id_of_an_object_made_in_the_function_is_that_of_the_rebuilt_one() -> None:
    def f(t: torch.Tensor) -> Any:
        made = Plain()
        number = id(made)
        t = t + 1
        argand.graph_break()
        return number == id(made), {number: 1}[id(made)], t

    follows(f, (), ())


class Frozen(frozenset):  # type: ignore[type-arg]
    pass


class Mutable(set):  # type: ignore[type-arg]
    pass


def test_sets_from_outside_keep_their_elements_and_order() -> None:
    large = set(range(100))
    large -= set(range(1, 100))
    large |= {8, 1}
    large.discard(0)

    def f(items: Any, t: torch.Tensor) -> Any:
        return list(items), len(items), t + 1

    follows(f, ({0, 8},), ({8, 0},), ({False, 8},), (large,), ({8, 1},), (Frozen("abc"),), (Mutable("abc"),))


def test_sets_made_in_the_function_keep_their_order_across_a_break() -> None:
    def f(numbers: list[int], t: torch.Tensor) -> Any:
        t = t + 1
        made = set()
        for number in numbers:
            made.add(number)
        copied = frozenset(made)
        before = list(made), list(copied)
        argand.graph_break()
        return before == (list(made), list(copied)), t

    for seed in range(4):
        numbers = random.Random(seed).sample(range(200), 20)
        assert argand.compile(f, backend="eager")(numbers, T)[0]


def test_iterators_over_dicts_and_sets_are_rebuilt_as_they_are() -> None:
    def f(t: torch.Tensor) -> Any:
        t = t + 1
        plain, ordered, numbers = {"a": 1, "b": 2}, collections.OrderedDict(a=1, b=2, c=3), {3, 4, 5}
        made: list[Any] = [
            iter(plain), iter(plain.items()), reversed(plain), iter(ordered), iter(ordered.values()),
            reversed(ordered.items()), iter(numbers), iter({}),
        ]  # fmt: skip
        for iterator in made:
            next(iterator, None)
        argand.graph_break()
        return [type(iterator) for iterator in made], [list(iterator) for iterator in made], t

    follows(f, (), ())


@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_dict_changed_during_iteration_with_breaks(name: str) -> None:
    def grows(table: dict[int, int], t: torch.Tensor) -> Any:
        t = t + 1
        for _ in getattr(table, name)():
            argand.graph_break()
            table[len(table)] = 1
        return t

    def replaces(table: dict[int, int], t: torch.Tensor) -> Any:
        t = t + 1
        for _ in getattr(table, name)():
            argand.graph_break()
            del table[0]
            table[0] = 0
        return t

    for fn in (grows, replaces):
        with pytest.raises(RuntimeError):
            fn({0: 0}, T)
        with pytest.raises(RuntimeError):
            argand.compile(fn, backend="eager")({0: 0}, T)


def test_deque_iterator_outlives_elements_that_are_set() -> None:
    def f(items: Any, iterator: Any, t: torch.Tensor) -> Any:
        for i in range(len(items)):
            items[i] = i * 2
        t = t + 1
        argand.graph_break()
        return list(iterator), t

    items = collections.deque(range(4))
    assert argand.compile(f, backend="eager")(items, iter(items), T)[0] == [0, 2, 4, 6]


def test_copying_an_outer_iterator_does_not_consume_it() -> None:
    def f(t: torch.Tensor) -> Any:
        steps = itertools.accumulate([None, None, None], operator.is_)
        first = next(steps)
        found = [list(copy.deepcopy(steps))]
        argand.graph_break()
        found.append(list(copy.copy(steps)))
        return first, found, t + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        follows(f, ())


class Truncated:
    def __trunc__(self) -> int:
        return 3


class Number(float):
    pass


class Subclassed:
    def __float__(self) -> float:
        return Number(3)


@pytest.mark.parametrize("kind, value", [(int, Truncated()), (float, Subclassed())])
def test_warnings_of_native_code_name_the_program(kind: Any, value: Any) -> None:
    def f(t: torch.Tensor) -> Any:
        return kind(value), t + 1

    if kind is int and not hasattr(int, "__trunc__"):
        pytest.skip("this Python has no __trunc__ conversion")
    compiled = argand.compile(f, backend="eager")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            compiled(T)
        assert [entry.filename for entry in seen if entry.category is DeprecationWarning] == [__file__]


def test_methods_of_numbers_get_plain_numbers() -> None:
    def f(z: complex, i: int, t: torch.Tensor) -> Any:
        return complex.__ne__(z, i), complex.__add__(z, i), z.__sub__(i), t + 1

    def g(i: int, t: torch.Tensor) -> Any:
        return float.__mul__(1.5, i), int.__add__(3, i), (3).__eq__(i), int.__lt__(5, i), t + 1

    follows(f, *((3j, i) for i in range(2, 7)))
    follows(g, *((i,) for i in range(2, 7)))


def test_elements_that_are_one_float_are_identical() -> None:
    def f(ours: Any, t: torch.Tensor) -> Any:
        copied = ours.copy()
        argand.graph_break()
        return all(a is b for a, b in zip(ours, copied)), t + 1

    follows(f, *((collections.deque([i + 0.5]),) for i in range(5)))


def named() -> None:
    pass


def test_native_attributes_refuse_what_they_refuse_in_eager() -> None:
    def f(t: torch.Tensor) -> Any:
        t = t + 1
        try:
            named.__name__ = 42  # type: ignore[assignment]
        except TypeError as error:
            return str(error), t
        return t

    def renamed(cls: type, name: str, t: torch.Tensor) -> Any:
        cls.__name__ = name
        cls.__doc__ = name
        return cls.__name__, cls.__qualname__, cls.__doc__, t + 1

    follows(f, ())
    follows(renamed, *((type("C", (), {}), name) for name in ("A", "B", "C")))


def test_namespace_of_an_enum_is_written_once() -> None:
    def f(namespace: Any, t: torch.Tensor) -> Any:
        namespace["B"] = 2
        argand.graph_break()
        return dict(namespace)["B"], list(namespace._member_names), t + 1

    def make() -> Any:
        made = enum.EnumMeta.__prepare__("X", (enum.Enum,))
        made["A"] = 1
        return made

    assert repr(argand.compile(f, backend="eager")(make(), T)) == repr(f(make(), T))


def test_class_made_by_types_runs_its_hooks_once() -> None:
    calls: list[str] = []

    class Meta:
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls)

        @classmethod
        def __prepare__(cls, name: str, bases: Any) -> Any:
            calls.append(name)
            return {}

    def f(t: torch.Tensor) -> Any:
        types.new_class("A", (), {"metaclass": Meta})
        argand.graph_break()
        return t + 1

    argand.compile(f, backend="eager")(T)
    assert calls == ["A"]


def test_module_that_intercepts_reads_is_written_without_them() -> None:
    log: list[str] = []

    class Logging(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return super().__getattribute__(name)

    module: Any = Logging("m")

    def f(t: torch.Tensor) -> Any:
        module.x = 3
        return t + 1

    argand.compile(f, backend="eager")(T)
    assert log == [] and vars(types.ModuleType)["__dict__"].__get__(module)["x"] == 3


def test_bad_newargs_raise() -> None:
    class Bad:
        def __getnewargs__(self) -> Any:
            return "bad"

    def f(value: Any, t: torch.Tensor) -> Any:
        return copy.copy(value), t + 1

    follows(f, (Bad(),))


def test_deleted_arguments_and_temporaries_die_before_the_break() -> None:
    seen: list[bool] = []

    @argand.disable
    def look(ref: Any) -> None:
        import gc

        gc.collect()
        seen.append(ref() is None)

    def f(value: Any, t: torch.Tensor) -> Any:
        t = t + 1
        made = Plain()
        table = {made: 1}
        made.view, made.again = table.items(), iter(table.keys())
        refs = weakref.ref(made), weakref.ref(value)
        argand.graph_break()
        del made, table
        ref = refs[0]
        look(ref)
        return t

    argand.compile(f, backend="eager")(Plain(), T)
    assert seen == [True]


def test_id_of_a_container_from_outside_is_guarded() -> None:
    follows(lambda x, y, t: (id(x) == id(y), t + 1), *(((a := [1]), a) if same else ([1], [1]) for same in (1, 0, 1)))
    compiled = argand.compile(lambda x, t: (id(x), t + 1), backend="eager")
    for items in ([1], {1: 1}, [1], collections.Counter("a"), collections.Counter("b")):
        assert compiled(items, T)[0] == id(items)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_lazily_evaluated_bounds_see_captured_writes() -> None:
    source = """
def f(t):
    class X:
        T = int
        def foo[U: T](self): ...
        type Alias = T
    argand.graph_break()
    X.T = float
    t = t + 1
    return X.foo.__type_params__[0].__bound__, X.Alias.__value__, t
"""
    namespace: dict[str, Any] = {"argand": argand}
    exec(source, namespace)
    follows(namespace["f"], ())


class Text(str):
    pass


class Octets(bytes):
    pass


class Whole(int):
    pass


def test_copies_of_native_subclasses_keep_their_value() -> None:
    def f(value: Any, t: torch.Tensor) -> Any:
        return copy.copy(value), copy.deepcopy(value), copy.copy(value).x, t + 1

    for value in (Text("abc"), Octets(b"abc"), Whole(7), Number(1.5)):
        value.x = 10  # type: ignore[attr-defined]
        compiled = argand.compile(f, backend="eager")(value, T)
        assert repr(compiled) == repr(f(value, T))
        assert type(compiled[0]) is type(value)
