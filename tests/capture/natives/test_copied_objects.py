"""`copy.copy` and `copy.deepcopy` of objects whose class finds attributes in its own way, as configurations do."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

X = torch.ones(2)


class Renamed:
    """An attribute has two names."""

    names = {"n": "size"}  # noqa: RUF012

    def __init__(self) -> None:
        self.size = 3
        self.nested: dict[str, list[int]] = {"a": [1, 2]}

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))

    def __setattr__(self, name: str, value: object) -> None:
        names = super().__getattribute__("names")
        super().__setattr__(names.get(name, name), value)


class Logged(Renamed):
    log: list[str] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> Any:
        Logged.log.append(name)
        return super().__getattribute__(name)


class WithState(Renamed):
    def __getstate__(self) -> dict[str, Any]:
        return {"size": 9, "nested": {}}


class Plain:
    pass


class Reduced(Renamed):
    def __reduce__(self) -> Any:
        return Plain, (), {"z": self.n}


class Slotted:
    __slots__ = ("__dict__", "a")

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


def slotted() -> Slotted:
    made: Any = Slotted()
    made.a, made.b = [1], 2
    return made


def with_its_own_getstate() -> Plain:
    made: Any = Plain()
    made.a = 1
    made.__getstate__ = lambda: {"a": 77}
    return made


def seen(value: Any) -> Any:
    fields = dict(object.__getattribute__(value, "__dict__"))
    fields.pop("__getstate__", None)
    return type(value), fields


def whole(fn: Any) -> Any:
    return argand.compile(fn, backend="eager", fullgraph=True)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("make", [Renamed, Logged, WithState, Reduced, slotted, with_its_own_getstate])
def test_copies(make: Any, way: Any) -> None:
    original = make()

    def program(x: torch.Tensor) -> Any:
        return x + 1, way(original)

    compiled = whole(program)
    for _ in range(2):
        Logged.log.clear()
        want, asked = seen(program(X)[1]), list(Logged.log)
        Logged.log.clear()
        got = compiled(X)[1]
        assert Logged.log == asked
        assert seen(got) == want and got is not original
        original.size = 10
    if make is slotted:
        assert got.a == [1] and (got.a is original.a) == (way is copy.copy)


def test_a_copy_that_is_changed() -> None:
    original = Renamed()

    def program(x: torch.Tensor) -> Any:
        copied = copy.deepcopy(original)
        copied.n += 1
        copied.nested["a"].append(5)
        fresh = Renamed()
        fresh.n = 8
        return x * copied.size + copy.copy(fresh).n, copied

    compiled = whole(program)
    for size in (3, 10):
        original.size = size
        want, got = program(X), compiled(X)
        assert torch.equal(want[0], got[0]) and seen(want[1]) == seen(got[1])
        assert seen(original) == (Renamed, {"size": size, "nested": {"a": [1, 2]}})


def test_what_reduce_ex_says() -> None:
    original = Renamed()

    def program(x: torch.Tensor) -> Any:
        return x + 1, original.__reduce_ex__(4), original.__reduce_ex__(2)

    assert whole(program)(X)[1:] == program(X)[1:]


class Ordered(OrderedDict[str, Any]):
    pass


class StatedOrder(OrderedDict[str, Any]):
    def __getstate__(self) -> dict[str, Any]:
        return {"size": 9}


class Named(dict[str, Any]):
    pass


HELD: dict[str, Callable[[], Any]] = {
    "ordered": lambda: OrderedDict(a=1, b=[2]),
    "with attributes": lambda: Ordered(a=1, b=[2]),
    "with a state": lambda: StatedOrder(a=1, b=[2]),
    "dict": lambda: Named(a=1, b=[2]),
    "list": lambda: ListNamed([1, [2]]),
}


class ListNamed(list[Any]):
    pass


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda held: held.__getstate__()])
def test_containers_with_attributes(kind: str, outer: bool, how: Callable[[Any], Any]) -> None:
    def described(value: Any) -> Any:
        items = value.items() if isinstance(value, dict) else value
        return type(value), list(items or ()), dict(getattr(value, "__dict__", {}))

    def f(x: torch.Tensor, held: Any, size: int) -> Any:
        held = held if outer else HELD[kind]()
        if hasattr(held, "__dict__"):
            held.size = size
        return x + size, how(held), held

    run = argand.compile(f, backend="eager", fullgraph=True)
    for size in (1, 1, 5):
        held, other = HELD[kind](), HELD[kind]()
        results = [f(X, held, size), run(X, other, size)]
        want, got = ([described(value) for value in result[1:]] for result in results)
        assert want == got
        shared = [result[1][-1] is result[2][-1] for result in results if kind == "list" and how is copy.copy]
        assert len(set(shared)) < 2
