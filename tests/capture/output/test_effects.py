"""Side effects: replayed after the graph, with aliases and order kept."""

from __future__ import annotations

import collections

import pytest
import torch

import argand
from helpers import assert_same, check

X = torch.ones(2)


def appends(items, x):
    items.append(x + 1)
    items.insert(0, 5)
    del items[1]
    return len(items)


def dict_writes(table, x):
    table["new"] = x * 2
    table.pop("a")
    table["a"] = 1
    table.setdefault("b", []).append(x)
    return list(table)


def set_writes(held, x):
    held.add(3)
    held.discard(1)
    return x + len(held)


def nested(table, x):
    table["list"].append(x)
    table["list"] = table["list"] * 2
    return table["list"][0] is table["list"][1]


@pytest.mark.parametrize(
    ("fn", "argument"),
    [
        (appends, [1, 2]),
        (dict_writes, {"a": 0, "b": [1]}),
        (dict_writes, collections.OrderedDict(a=0)),
        (set_writes, {1, 2}),
        (nested, {"list": [1]}),
        (lambda d, x: d["k"].append(x), collections.defaultdict(list)),
        (lambda d, x: d.appendleft(x + 1), collections.deque([1], maxlen=3)),
    ],
)
def test_containers(fn, argument) -> None:
    check(fn, argument, X, fullgraph=True)


class Box:
    def __init__(self, value) -> None:
        self.value = value
        self.count = 0

    def step(self, x):
        self.count += 1
        self.last = self.value * x
        return self.last + self.count


def test_attributes() -> None:
    box, other = Box(3), Box(3)
    compiled = argand.compile(box.step, backend="eager", fullgraph=True)
    for _ in range(3):
        assert_same(other.step(X), compiled(X))
    assert box.count == 3 and torch.equal(box.last, other.last)


def test_deleted_attribute() -> None:
    def f(box, x):
        del box.value
        return hasattr(box, "value"), x + 1

    box = Box(1)
    assert argand.compile(f, backend="eager")(box, X)[0] is False
    assert not hasattr(box, "value")


TOTAL = 0


def test_globals() -> None:
    def f(x):
        global TOTAL
        TOTAL += 1
        return x + TOTAL

    compiled = argand.compile(f, backend="eager")
    assert [compiled(X)[0].item() for _ in range(3)] == [2.0, 3.0, 4.0]
    assert TOTAL == 3


def test_nonlocal() -> None:
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x + count

    compiled = argand.compile(f, backend="eager")
    assert [compiled(X)[0].item() for _ in range(3)] == [2.0, 3.0, 4.0]
    assert count == 3


def test_effects_once_when_the_frame_breaks() -> None:
    log: list[object] = []

    def f(x):
        log.append("before")
        log.append(x.sum().item() > 0)
        log.append("after")
        return x + 1

    argand.compile(f, backend="eager")(X)
    assert log == ["before", True, "after"]


def test_bound_builtin_method_as_argument() -> None:
    def f(add, x):
        add(x + 1)
        return x

    items: list[torch.Tensor] = []
    compiled = argand.compile(f, backend="eager")
    compiled(items.append, X)
    compiled(items.append, X)
    assert len(items) == 2


def test_nothing_is_written_when_the_program_raises() -> None:
    def f(items, x):
        items.append(x)
        raise KeyError("stop")

    items: list[torch.Tensor] = []
    with pytest.raises(KeyError):
        argand.compile(f, backend="eager")(items, X)
    assert len(items) == 1  # once, by the eager run


def test_buffers_and_modules() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.seen = self.seen * 0.5 + x
            return self.seen * 2

    one, two = Counter(), Counter()
    compiled = argand.compile(one, backend="eager", fullgraph=True)
    for i in range(3):
        assert_same(two(X * i), compiled(X * i))
    assert one.calls == 3 and torch.equal(one.seen, two.seen)


def test_attribute_set_on_tensors() -> None:
    def f(x):
        y = x + 1
        y.note = "kept"
        return y

    assert argand.compile(f, backend="eager")(X).note == "kept"
