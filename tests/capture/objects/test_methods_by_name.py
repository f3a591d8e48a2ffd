"""What Python calls by itself (`__call__`, `__missing__`, `__next__`, ...), called by its name, and rarer forms of protocols."""

from __future__ import annotations

import abc
import collections
import types

import pytest
import torch
from tests.capture.agreement import outcome

import argand


def missing(x):
    d = collections.defaultdict(list)
    d.__missing__(3).append(x)
    return d[3][0] + 1, list(d), d.__missing__(4)


def missing_of_subclass(x):
    class Told(collections.defaultdict):
        def __init__(self, *args, **named):
            super().__init__(list, *args, **named)

        def __missing__(self, key):
            return key, super().__missing__(key)

    d = Told({"a": 1}, b=2)
    return d[x.dim()], d["a"], d["b"], list(d)


def missing_without_factory(x):
    try:
        collections.defaultdict(None).__missing__(3)
    except KeyError as error:
        return x + error.args[0]


def begun_again(x):
    d = collections.defaultdict(list)
    d["q"] = x
    d.__init__(dict, {"a": 1}, b=2)
    return d["q"] + 1, d["z"], list(d)


def next_of_generator(x):
    def twice():
        yield x + 1
        yield x + 2

    items = twice()
    return items.__next__(), next(items), list(items)


def thrown(x):
    def caught():
        try:
            yield x
        except ValueError as error:
            yield x + error.args[0]

    one, other = caught(), caught()
    next(one), next(other)
    return one.throw(ValueError(4)), list(map(other.throw, [ValueError(5)]))


def where_a_generator_stands(x):
    def inner():
        yield x

    def outer():
        yield from inner()

    items = outer()
    before = items.gi_yieldfrom, items.gi_suspended
    next(items)
    return before, items.gi_yieldfrom is None, items.gi_suspended, x + 1


def function_made(x):
    def f(a):
        return a + 1

    g = types.FunctionType(f.__code__, f.__globals__, "other", (x,))
    return g(2), g.__name__, g()


def called(x):
    def f(a, b=1):
        return a + b

    class Holder:
        def method(self, y):
            return y * 2

    method = Holder().method
    return (
        f.__call__(x, 2),
        types.FunctionType.__call__(f, x, b=3),
        method.__call__(x),
        types.MethodType.__call__(method, 2),
    )


def registered(x):
    class Base(abc.ABC):
        pass

    class Other:
        pass

    Base.register(Other)
    return x + isinstance(Other(), Base), issubclass(Other, Base)


def read_by_type(x):
    class Meta(type):
        def __getattribute__(cls, name):
            return super().__getattribute__(name)

    class Read(metaclass=Meta):
        value = 3

    try:
        type.__getattribute__(Read, "other")
    except AttributeError as error:
        return x + Read.value, type.__getattribute__(Read, "__name__"), str(error)


def told_of_subclasses(x):
    class Base:
        def __init_subclass__(cls, factor=1, **rest):
            super().__init_subclass__(**rest)
            cls.factor = factor

    class Derived(Base, factor=4):
        pass

    return x * Derived.factor


def names_deleted_in_a_class(x):
    class Kept:
        value, other = 1, 2
        del value

    try:

        class Refused:
            del value  # noqa: F821

    except NameError as error:
        return x + Kept.other, hasattr(Kept, "value"), str(error), error.name


def made_here(x):
    held = {"a": x + 2}
    return slice(1, 2), types.MappingProxyType(held), x + 1


PROGRAMS = [
    missing, missing_of_subclass, missing_without_factory, begun_again, next_of_generator, thrown, where_a_generator_stands,
    function_made, called, registered, read_by_type, told_of_subclasses, names_deleted_in_a_class, made_here,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_agrees_with_eager(program):
    x = torch.arange(3.0)
    compiled = argand.compile(program, backend="eager", fullgraph=program is not read_by_type)
    assert outcome(compiled, x) == outcome(program, x)
