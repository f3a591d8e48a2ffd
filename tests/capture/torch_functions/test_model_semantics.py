"""Differences from eager that models of the zoo, and what is like them, once showed. Each was found, then fixed."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import torch

import argand
from helpers import check


def test_iterator_over_a_list_that_grew_keeps_its_place() -> None:
    """qwen2_5_vl: the list comes from before the break, was filled after it, and the second break is inside its loop."""

    def fn(t: torch.Tensor, k: list[int]) -> list[torch.Tensor]:
        groups: list[int] = []
        argand.graph_break()
        for key, _ in itertools.groupby(k):
            groups.append(key)
        found = []
        for m in groups:
            found.append(t + m)
            if m:
                argand.graph_break()
        return found

    check(fn, torch.ones(2), [0, 0, 1, 1, 0])


def test_reversed_iterator_over_a_list_that_grew_keeps_its_place() -> None:
    def fn(t: torch.Tensor, k: list[int]) -> list[torch.Tensor]:
        k.extend(range(3))
        found = []
        for i in reversed(k):
            found.append(t + i)
            if i == 1:
                argand.graph_break()
        return found

    check(fn, torch.ones(2), [])


def test_iterator_over_a_deque_that_grew() -> None:
    def fn(t: torch.Tensor, d: Any) -> Any:
        d.extend(range(3))
        it = iter(d)
        next(it)
        u = t + 1
        argand.graph_break()
        return u, list(it)

    check(fn, torch.ones(2), collections.deque())


def test_defaults_of_functions_of_one_code_are_guarded() -> None:
    """LBFGS with `lambda i=i: loss(i)`: the closure of each call is of the same code, with another default."""
    given = torch.arange(10.0)

    def step(closure: Any) -> Any:
        return closure(), closure() + 1

    compiled = argand.compile(step, backend="eager")
    for i in (0, 1, 2, 5):
        assert compiled(lambda i=i: given[i]) == (given[i], given[i] + 1)
        assert compiled(lambda *, i=i: given[i]) == (given[i], given[i] + 1)
    for scale in (1.0, None, 2.0, True):
        assert compiled(lambda s=scale: given[1] if s is None else given[1] * s)[0] == (scale or 1.0)
