"""Loops that Python runs because a graph broke in them: compiled round by round where there is a graph, else left alone."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
import torch

import argand

ROUNDS = 20_000


def written(x: torch.Tensor, items: list[float]) -> Any:
    out, total = io.StringIO(), 0.0
    for item in items:
        total += item
        out.write("a")
    return x * total, len(out.getvalue())


def comprehended(x: torch.Tensor, items: list[float]) -> Any:
    out = io.StringIO()
    return x * sum([out.write("a") for _ in items]), len(out.getvalue())


def forever(x: torch.Tensor, items: list[float]) -> Any:
    out, number = io.StringIO(), 0
    while True:
        number += out.write("a")
        if number == len(items):
            return x * number


def seconds(program: Any, *args: Any) -> float:
    start = time.perf_counter()
    program(*args)
    return time.perf_counter() - start


@pytest.mark.parametrize("program", [written, comprehended, forever])
def test_rounds_without_a_graph_cost_what_they_cost_eagerly(program: Any) -> None:
    x, items = torch.ones(3), [1.0] * ROUNDS
    compiled = argand.compile(program, backend="eager")
    want = program(x, items)
    for _ in range(3):
        assert str(compiled(x, items)) == str(want)
    pairs = [(seconds(compiled, x, items), seconds(program, x, items)) for _ in range(5)]
    assert min(mine / eager for mine, eager in pairs) < 5  # it was 50 to 150


def test_rounds_with_a_graph_stay_compiled() -> None:
    calls = []

    def counting(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(1)
            return graph(*args)

        return run

    def program(x: torch.Tensor, out: io.StringIO) -> Any:
        for _ in range(1500):
            x = x + 1
            out.write("a")
        return x

    out = io.StringIO()
    compiled = argand.compile(program, backend=counting)
    assert torch.equal(compiled(torch.zeros(2), out), torch.full((2,), 1500.0))
    assert len(calls) == 1500 and len(out.getvalue()) == 1500


def test_what_is_called_behind_such_a_loop_is_still_compiled() -> None:
    graphs = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def part(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def program(x: torch.Tensor, items: list[float]) -> Any:
        _, length = written(x, items)
        return part(x) * length

    compiled = argand.compile(program, backend=counting)
    x, items = torch.ones(3), [1.0] * 3000
    for _ in range(2):
        assert torch.equal(compiled(x, items), program(x, items))
    assert any("sin" in graph.code for graph in graphs)
