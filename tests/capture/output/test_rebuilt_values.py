"""What transformed code rebuilds: identities, classes, closures, iterators."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import types

import pytest
import torch

import argand
from helpers import assert_same, check

X = torch.arange(4.0)
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: object
    right: object = None


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held) -> None:
        self.held = held


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: [x + 1, {"k": (x * 2, 3)}, None, "text", 2.5, slice(1, 2)],
        lambda x: Point(x, x + 1),
        lambda x: {"a": x, 1: [x], (1, 2): x.shape},
        lambda x: collections.OrderedDict(b=x, a=x + 1),
        lambda x: torch.max(x, 0),
        lambda x: (x.shape, x.dtype, x.device, float("nan")),
        lambda x: [x[1:], x.view(2, 2), x],
    ],
)
def test_values(fn) -> None:
    check(fn, X, fullgraph=True)


def test_identities() -> None:
    def f(x):
        y = x + 1
        inner = [y]
        return inner, inner, y, {"again": inner}

    one, two, y, table = argand.compile(f, backend="eager", fullgraph=True)(X)
    assert one is two and table["again"] is one and one[0] is y


def test_cycles() -> None:
    def f(x):
        items = [x + 1]
        items.append(items)
        return items

    made = argand.compile(f, backend="eager")(X)
    assert made[1] is made and torch.equal(made[0], X + 1)


def test_instances() -> None:
    def f(x):
        return Pair(x + 1, Slotted(x * 2))

    made = argand.compile(f, backend="eager", fullgraph=True)(X)
    assert type(made) is Pair and torch.equal(made.left, X + 1) and torch.equal(made.right.held, X * 2)


def test_closures() -> None:
    def f(x):
        total = x * 2

        def add(y):
            nonlocal total
            total = total + y
            return total

        def read():
            return total

        return add, read

    add, read = argand.compile(f, backend="eager")(X)
    assert torch.equal(add(X), X * 3) and torch.equal(read(), X * 3)


def test_recursive_closure() -> None:
    def f(x):
        def fact(n):
            return x if n == 0 else fact(n - 1) * n

        return fact

    assert torch.equal(argand.compile(f, backend="eager")(X)(3), X * 6)


def test_partial_and_methods() -> None:
    def f(x):
        return functools.partial(torch.add, x * 2), [x].append

    partial, append = argand.compile(f, backend="eager")(X)
    assert torch.equal(partial(X), X * 3)
    append(1)


def test_iterators() -> None:
    def f(x):
        it = iter([x, x + 1, x + 2])
        next(it)
        return it, enumerate([x]), zip([x], [1])

    it, pairs, zipped = argand.compile(f, backend="eager")(X)
    assert_same([X + 1, X + 2], list(it))
    assert_same([(0, X)], list(pairs))
    assert_same([(X, 1)], list(zipped))


def test_inputs_are_handed_back_as_they_are() -> None:
    items = [X, 1]
    got = argand.compile(lambda items, x: (items, x, x + 1), backend="eager", fullgraph=True)(items, X)
    assert got[0] is items and got[1] is X


def test_varargs_and_keyword_only() -> None:
    def f(a, *rest, scale=2, **named):
        return a * scale + sum(rest) + named["extra"]

    check(f, X, X, 1, scale=3, extra=X, fullgraph=True)


def test_unique_names() -> None:
    def f(x):
        return x + 1

    names: list[str] = []
    for _ in range(3):
        argand.reset()
        compiled = argand.compile(f, backend="eager")
        compiled(X)
        names += [n for n in f.__globals__ if n.startswith("__compiled_fn_")]
    assert len(names) == len(set(names)) == 3  # each goes with the code that reads it, and none comes again


class _Handle:
    def __init__(self, number: int) -> None:
        self.number, self.done = number, False


class _Counted:
    def __init__(self, number: int) -> None:
        self.__dict__["number"] = number
        self.done = False

    @property
    def number(self) -> int:
        return int(vars(self)["number"]) + 1


def test_attributes_lie_in_the_object_as_where_its_own_code_sets_them() -> None:
    """Reading those of an object whose `__dict__` somebody asked for takes CPython longer, in each call of a method."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, _Handle, _Counted]:
        return x + 1, _Handle(3), _Counted(3)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        _, handle, counted = compiled(torch.ones(2))
        assert not any(type(referent) is dict for referent in gc.get_referents(handle))
        assert vars(handle) == {"number": 3, "done": False}
        assert counted.number == 4 and list(vars(counted)) == ["number", "done"]


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        (lambda x: object(), None),
        (lambda x: property(lambda owner: x + 1, doc="of mine"), lambda it: (it.fget(None), it.__doc__)),
        (lambda x: staticmethod(lambda: x + 1), lambda it: it()),
        (lambda x: classmethod(lambda cls: x + 1), lambda it: it.__func__(int)),
        (lambda x: functools.cached_property(lambda owner: x + 1), lambda it: it.func(None)),
        (lambda x: functools.lru_cache(maxsize=None)(lambda: x + 1), lambda it: it()),
        (lambda x: types.ModuleType("of_this_call"), None),
        (lambda x: copy.copy(object()), None),
    ],
)
def test_objects_of_one_call(make, asked) -> None:
    """They were constants of transformed code: one for all calls."""

    def fn(x):
        y = x * 2
        new = make(y)
        return y, new, new

    compiled = argand.compile(fn, backend="eager")
    (_, one, again), (_, other, _) = compiled(X), compiled(X + 1)
    assert one is again and one is not other and type(one) is type(other)
    if asked is not None:
        for new, x in ((one, X), (other, X + 1)):
            assert_same(asked(new), asked(make(x * 2)))


@pytest.mark.parametrize("breaks", [False, True])
def test_the_namespace_of_an_object(breaks: bool) -> None:
    """It was rebuilt as another dict: what was written to it, the object did not have."""
    kept = []

    def fn(x):
        def inner(): ...

        for new in (Pair(x), inner):
            names = new.__dict__
            kept.append(names)
            y = x + 1
            if breaks:
                argand.graph_break()
            names["more"] = y
            kept.append(new)
        return y

    argand.compile(fn, backend="eager")(X)
    for names, new in (kept[:2], kept[2:]):
        assert new.__dict__ is names and "more" in names


class Indexed:
    def __getitem__(self, index):
        return "abc"[index]

    def __len__(self):
        return 3


@pytest.mark.parametrize("make", [lambda: iter(Indexed()), lambda: reversed(Indexed()), lambda: iter(lambda: 1, 2)])
def test_iterators_that_are_interpreted_in_captured_code(make) -> None:
    """They were left behind as generators."""

    def fn(x):
        iterator = make()
        first = next(iterator)
        y = x + 1
        argand.graph_break()
        return y, first, next(iterator), iterator

    _, *want, left = fn(X)
    _, *got, rebuilt = argand.compile(fn, backend="eager")(X)
    assert got == want and type(rebuilt) is type(left)
    assert next(rebuilt, None) == next(left, None)
