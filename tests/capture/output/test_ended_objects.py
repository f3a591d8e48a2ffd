"""What is weakly referred to ends in captured code when it would in eager: after a graph break too, however it is held."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
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


def _ends(number: int, log: list[object]) -> Iterator[int]:
    try:
        yield number
    finally:
        log.append(number)


@argand.disable
def _raises() -> None:
    raise ValueError


def _out_of_the_frame(log: list[object]) -> None:
    held = _ends(7, log)
    next(held)
    argand.graph_break()
    for _ in enumerate(_ends(1, log)):
        for _ in enumerate(_ends(2, log)):
            argand.graph_break()
            argand.graph_break()
            _raises()


def _to_a_handler(log: list[object]) -> None:
    for _ in enumerate(_ends(1, log)):
        try:
            for _ in enumerate(_ends(2, log)):
                for _ in enumerate(_ends(3, log)):
                    argand.graph_break()
                    argand.graph_break()
                    _raises()
        except ValueError:
            log.append("caught")
        finally:
            log.append("finally")
        argand.graph_break()


@pytest.mark.parametrize("program", [_out_of_the_frame, _to_a_handler])
def test_an_error_drops_the_stack_from_its_top(program: Callable[[list[object]], None]) -> None:
    """What lies below a broken instruction was kept in local variables, which die in another order, after the others."""
    logs: list[list[object]] = [[], []]
    for run, log in zip((program, argand.compile(program, backend="eager")), logs):
        with contextlib.suppress(ValueError):
            run(log)
    assert logs[0] == logs[1]
