"""Indexing with tensors of no dimension: the graph reads the number, and what it selects is a view, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand.capture.driver.explain import Findings
from argand.events import bus

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def row(x: torch.Tensor, t: torch.Tensor) -> Any:
    return x[t]


def columns(x: torch.Tensor, t: torch.Tensor) -> Any:
    return x[:, t], x[..., t, None] * 2, x[t, 1:], x[t, t], x[[0, 1], t]


def written_through(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x[t]
    y.add_(1)
    return x * 2


def seen_through(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x + 0
    view = y[t]
    before = view * 2
    y.mul_(3)
    return view, before, y


def assigned(x: torch.Tensor, t: torch.Tensor) -> Any:
    x[t] = 3
    x[t, 1:3] = torch.ones(2)
    x[t] += 1
    return x.sum()


def position_changes(x: torch.Tensor, t: torch.Tensor) -> Any:
    t = t + 0
    first = x[t]
    t.sub_(1)
    return first * 2, x[t]


def position_is_computed(x: torch.Tensor, t: torch.Tensor) -> Any:
    return x[x.argmax() % 4], x[(x[t] > 0).sum() % 4]


def handled(x: torch.Tensor, t: torch.Tensor) -> Any:
    x = x * 2
    try:
        y = x[t]
    except IndexError:
        y = x[0] - 1
    return y * 3


def unused(x: torch.Tensor, t: torch.Tensor) -> Any:
    x[t]
    return x.add_(1)


PROGRAMS = [
    row, columns, written_through, seen_through, assigned, position_changes, position_is_computed, handled, unused,
]  # fmt: skip


def outcome(run: Program, x: torch.Tensor, t: torch.Tensor) -> Any:
    """What a call gives and does: results with strides and what they are views of, the error, the input after it."""
    try:
        result = run(x, t)
    except Exception as error:
        return repr(error), x.tolist(), x._version
    results = result if isinstance(result, tuple) else (result,)
    return [(y.tolist(), y.stride(), y._base is x) for y in results], x.tolist(), x._version, t.tolist()


@pytest.mark.parametrize(
    ("dynamic", "backend", "program"), sweeps.combinations([None, False, True], ["eager", "aot_eager"], PROGRAMS)
)
def test_as_eager(program: Program, backend: str, dynamic: bool | None) -> None:
    compiled = argand.compile(program, backend=backend, dynamic=dynamic)
    findings = Findings()
    with findings.listening():
        for dtype, value in ((torch.int64, 1), (torch.int64, -2), (torch.int64, 9), (torch.int64, 3), (torch.int32, 2)):
            x, t = torch.arange(20.0).sin().view(5, 4), torch.tensor(value, dtype=dtype)
            assert outcome(compiled, x.clone(), t.clone()) == outcome(program, x.clone(), t.clone())
    assert not findings.breaks
    assert len(findings.recompiles) == 1  # for the other dtype


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_masks_of_no_dimension_stay_masks(dtype: torch.dtype) -> None:
    x, t = torch.randn(5, 4), torch.tensor(1, dtype=dtype)
    assert outcome(argand.compile(row, backend="eager"), x, t) == outcome(row, x, t)


def test_gradients_on_native() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        w = w.sin()
        return (x[t] * w[:, t]).sum() + w[t].square().sum()

    compiled = argand.compile(loss, fullgraph=True)
    for value in (2, -1):
        w = torch.randn(4, 4).requires_grad_()
        x, t = torch.randn(5, 4), torch.tensor(value)
        for got, want in zip(
            torch.autograd.grad(compiled(x, w, t), w), torch.autograd.grad(loss(x, w, t), w), strict=True
        ):
            torch.testing.assert_close(got, want)


def read_only(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    u = (t + 1) % 4
    return (x[t] + x[y, u] * 2).abs(), x[u, 1:] * x[t, u]


def set_to_a_number(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    x[t] = 3
    x[y, t - 1] = x.sum() * 0
    return x * 2


def returned(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    return x[t], x * 2


def written(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    row = x[t]
    x.mul_(2)
    return row + 1


def position_is_written(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    u = t + 0
    row = x[u] * 2
    u.sub_(1)
    return row + x[u]


WHOLE = (read_only, set_to_a_number, position_is_written)
PARTS = (returned, written)


@pytest.mark.parametrize("program", [*WHOLE, *PARTS])
def test_code_is_made_of_the_whole_graph_where_no_view_is_told_from_a_copy(program: Any) -> None:
    compiled, y = argand.compile(program, fullgraph=True), torch.tensor([0, 3, 3, 1])
    refused: list[Any] = []
    stop = bus.subscribe(refused.append, ("fallback",))
    for value in (2, -1, 9):
        x, t = torch.arange(20.0).sin().view(5, 4), torch.tensor(value)
        got, want = (outcome(lambda x, t, run=run: run(x, y, t), x.clone(), t.clone()) for run in (compiled, program))
        assert got == want
    stop()
    assert bool(refused) == (program in PARTS)


def test_position_that_changes_before_the_backward() -> None:
    x, y = torch.arange(20.0).sin().view(5, 4), torch.tensor([0, 3, 3, 1])
    gradients = []
    for run in (read_only, argand.compile(read_only, fullgraph=True)):
        w, t = x.clone().requires_grad_(), torch.tensor(2)
        loss = sum(part.sum() for part in run(w * 1, y, t)) + (run(x, y, t)[0] * w.sum()).sum()
        t.sub_(2)
        loss.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)


def test_one_graph_for_all_positions() -> None:
    table = torch.randn(50)

    def noise(x: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
        for moment in moments:
            x = x * table[moment] + table[moment - 1]
        return x

    compiled = argand.compile(noise, backend="eager", fullgraph=True)
    findings = Findings()
    with findings.listening():
        for start in (3, 17, 40):
            x, moments = torch.randn(3), torch.tensor([start + 5, start, 1])
            torch.testing.assert_close(compiled(x, moments), noise(x, moments))
    assert len(findings.graphs) == 1 and not findings.recompiles
