"""Objects that each call makes anew: a function of the same code fits, and what never fits twice is not compiled forever."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import argand
from argand.config import config
from helpers import CountingBackend

X = torch.randn(3)


class Solver:
    def __init__(self, step: float) -> None:
        self.grid = lambda t, by=step: t * by
        self.plain = lambda t: t + 1

    def integrate(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.grid(x)).sin()


def solve(x: torch.Tensor, step: float) -> torch.Tensor:
    return Solver(step).integrate(x)


def test_functions_in_attributes_that_each_call_makes_anew() -> None:
    recorder = CountingBackend()
    compiled = argand.compile(lambda solver, x: solver.integrate(x), backend=recorder, dynamic=False)
    for _ in range(4):
        torch.testing.assert_close(compiled(Solver(2.0), X), solve(X, 2.0))
    assert len(recorder.graphs) == 1
    torch.testing.assert_close(compiled(Solver(3.0), X), solve(X, 3.0))
    other = Solver(2.0)
    other.plain = lambda t: t - 1
    torch.testing.assert_close(compiled(other, X), (X * 2 - 1).sin())
    assert len(recorder.graphs) == 3


def fresh() -> Any:
    class Scale:
        by = 2.0

    return Scale


@pytest.mark.filterwarnings("ignore:argand hit config.cache_size_limit")
def test_objects_of_one_call_do_not_compile_forever() -> None:
    recorder = CountingBackend()
    compiled = argand.compile(lambda x, scale: x * scale.by, backend=recorder)
    for _ in range(3 * config.cache_size_limit):
        torch.testing.assert_close(compiled(X, fresh()), X * 2)
        gc.collect()
    assert len(recorder.graphs) <= config.cache_size_limit + 1


def test_objects_of_several_calls_are_worth_it() -> None:
    recorder = CountingBackend()
    compiled = argand.compile(lambda x, scale: x * scale.by, backend=recorder)
    rounds = config.cache_size_limit + 4
    for _ in range(rounds):
        scale = fresh()
        for _ in range(2):
            torch.testing.assert_close(compiled(X, scale), X * 2)
        del scale
        gc.collect()
    assert len(recorder.graphs) == rounds
