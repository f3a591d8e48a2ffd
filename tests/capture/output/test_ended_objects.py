"""What is weakly referred to ends in captured code when it would in eager: after a graph break too, however it is held."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


class Node:
    value: Any = 3


def popped_tensor(x: torch.Tensor) -> object:
    values = [x + 1]
    ref = weakref.ref(values[0])
    argand.graph_break()
    values.pop() * 2
    return ref() is None


def popped_list(x: torch.Tensor) -> object:
    values = [[x + 1]]
    ref = weakref.ref(values[0][0])
    argand.graph_break()
    values.pop()
    return ref() is None


def deleted_holder(x: torch.Tensor) -> object:
    node = Node()
    node.value = x + 1
    ref = weakref.ref(node.value)
    argand.graph_break()
    del node
    return ref() is None


def in_a_dict(x: torch.Tensor) -> object:
    held = {"a": [Node()]}
    ref = weakref.ref(held["a"][0])
    argand.graph_break()
    held.pop("a")
    return ref() is None, x + 1


def default_of_a_function(x: torch.Tensor) -> object:
    node = Node()
    ref = weakref.ref(node)
    function: Any = lambda node=node: node  # noqa: E731
    del node
    argand.graph_break()
    function = None
    return ref() is None, function, x + 1


def behind_a_proxy(x: torch.Tensor) -> object:
    held = [Node()]
    proxy = weakref.proxy(held[0])
    argand.graph_break()
    held.pop()
    try:
        return proxy.value, x + 1
    except ReferenceError:
        return "gone", x + 1


def still_held(x: torch.Tensor) -> object:
    values, other = [x + 1], [Node()]
    ref, also = weakref.ref(values[0]), weakref.ref(other[0])
    argand.graph_break()
    kept = values.pop()
    node = other.pop()
    return ref() is kept, also() is node, kept * 2


def in_weak_containers(x: torch.Tensor) -> object:
    held = [Node()]
    containers = (
        weakref.WeakSet(held),
        weakref.WeakValueDictionary({1: held[0]}),
        weakref.WeakKeyDictionary({held[0]: 1}),
    )
    argand.graph_break()
    before = [*map(len, containers)]
    held.clear()
    return before, [*map(len, containers)], x + 1


PROGRAMS = [popped_tensor, popped_list, deleted_holder, in_a_dict, default_of_a_function, behind_a_proxy, still_held]


@pytest.mark.parametrize("fn", [*PROGRAMS, in_weak_containers])
def test_what_ends_is_gone(fn: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(2)
    compiled = argand.compile(fn, backend="eager")
    for _ in range(2):
        assert repr(compiled(x)) == repr(fn(x))
