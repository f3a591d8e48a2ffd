"""Weak dicts and sets from outside: read in the graph, guarded, and as eager after what they hold has changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend


class Key:
    def __init__(self, value: float = 1.0) -> None:
        self.value = value


class Equal(Key):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


READS: dict[str, Callable[..., Any]] = {
    "item": lambda x, held, key: x * held[key] if key in held else x,
    "get": lambda x, held, key: x * held.get(key, 5.0),
    "length": lambda x, held, key: x * len(held),
    "values": lambda x, held, key: x * sum(held.values()),
    "keys": lambda x, held, key: x * sum(k.value for k in held.keys()),
}


@pytest.mark.parametrize("name", READS)
def test_dicts_with_weak_keys(name: str) -> None:
    function = READS[name]
    argand.reset()
    argand.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # the first capture of a process keeps its frame
    compiled = argand.compile(function, backend="eager")
    keys = [Key(float(i)) for i in range(3)]
    held = weakref.WeakKeyDictionary({keys[0]: 2.0, keys[1]: 3.0})
    x = torch.ones(2)

    def same() -> None:
        for key in keys[:1]:
            torch.testing.assert_close(compiled(x, held, key), function(x, held, key))

    same()
    held[keys[0]] = 7.0
    same()
    held[keys[2]] = 4.0
    same()
    del held[keys[1]]
    same()
    keys[0].value = 9.0
    same()
    del keys[0]
    gc.collect()
    assert len(held) == 1
    same()


@pytest.mark.parametrize("name", ["item", "get"])
def test_one_graph(name: str) -> None:
    key, other = Key(), Key()
    held = weakref.WeakKeyDictionary({key: 2.0, other: 3.0})
    backend = CountingBackend()
    compiled = argand.compile(READS[name], backend=backend, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2), held, key), torch.full((2,), 2.0))
    assert len(backend.graphs) == 1


def test_sets_and_dicts_with_weak_values() -> None:
    def function(x: torch.Tensor, some: Any, named: Any, key: Key) -> torch.Tensor:
        return x * (2 if key in some else 3) * len(some) + named["a"].value + ("b" in named)

    compiled = argand.compile(function, backend="eager", fullgraph=True)
    key, other = Key(2.0), Key(3.0)
    some, named = weakref.WeakSet([key]), weakref.WeakValueDictionary({"a": key})
    x = torch.ones(2)
    for change in (lambda: None, lambda: some.add(other), lambda: some.discard(key), lambda: named.update(a=other)):
        change()
        for one in (key, other):
            torch.testing.assert_close(compiled(x, some, named, one), function(x, some, named, one))


def test_keys_that_are_compared_by_their_own_methods() -> None:
    def function(x: torch.Tensor, held: Any, key: Key) -> torch.Tensor:
        return x * held.get(key, 5.0)

    compiled = argand.compile(function, backend="eager")
    key, other = Equal(), Equal()
    held = weakref.WeakKeyDictionary({key: 2.0})
    for one in (key, other, Key()):
        torch.testing.assert_close(compiled(torch.ones(2), held, one), function(torch.ones(2), held, one))


def test_guards_keep_no_key_alive() -> None:
    key = Key()
    held = weakref.WeakKeyDictionary({key: 2.0})
    compiled = argand.compile(READS["item"], backend="eager")
    compiled(torch.ones(2), held, key)
    gone = weakref.ref(key)
    del key
    gc.collect()
    assert gone() is None and len(held) == 0
