"""`threading.local`: what captured code sets and deletes there is set and deleted for the thread that calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import argand


class Counting(threading.local):
    kind = "of the class"

    def __init__(self) -> None:
        self.count, self.other = 0, 1


def pushed(local: Any, x: torch.Tensor) -> Any:
    """As packages keep a stack for each thread."""
    try:
        stack = local.stack
    except AttributeError:
        stack = local.stack = []
    stack.append(len(stack))
    local.depth = len(local.stack)
    return x * local.depth, local.depth, list(stack)


def deleted(local: Any, x: torch.Tensor) -> Any:
    local.mine = x * 2
    before = hasattr(local, "mine"), "mine" in local.__dict__
    del local.mine
    try:
        del local.mine
    except AttributeError as error:
        return x + 1, before, hasattr(local, "mine"), type(error)
    return before


def kept(local: Any, x: torch.Tensor) -> Any:
    local.last = x * 2
    return local.last + 1


def counted(local: Any, x: torch.Tensor) -> Any:
    local.count += 1
    local.other = local.count
    return x + local.other, sorted(vars(local))


@pytest.mark.parametrize("program", [pushed, deleted, kept, counted])
def test_in_one_graph(program: Any) -> None:
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    ours, theirs = Counting(), Counting()

    def both() -> None:
        for _ in range(3):
            x = torch.rand(3)
            assert str(compiled(ours, x)) == str(program(theirs, x))
            assert str(vars(ours)) == str(vars(theirs))

    both()
    with ThreadPoolExecutor(1) as other:
        other.submit(both).result()
    both()


def test_what_the_class_has_under_the_name() -> None:
    def program(local: Any, x: torch.Tensor) -> Any:
        local.kind = "of the thread"
        return x + 1, local.kind

    ours, theirs = Counting(), Counting()
    compiled = argand.compile(program, backend="eager")
    assert str(compiled(ours, torch.ones(2))) == str(program(theirs, torch.ones(2)))
    assert vars(ours) == vars(theirs)
