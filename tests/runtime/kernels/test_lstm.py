"""LSTMs on a CPU, whose steps are one kernel of argand's: eager's results and gradients, also by oneDNN's kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand.runtime.kernels import lstm, timed_choice
from argand.runtime.kernels.timed_choice import Rivals

pytestmark = pytest.mark.skipif(not lstm.takes_widths(), reason="needs AVX2 and GCC")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Which of argand's kernels ran; they are always taken."""
    ran: list[str] = []
    for name in ("_own", "_own_backward"):

        def counted(*args: Any, name: str = name, call: Any = getattr(lstm, name), **kwargs: Any) -> Any:
            ran.append(name)
            return call(*args, **kwargs)

        monkeypatch.setattr(lstm, name, counted)
    argand.reset()
    with argand.config.patch({"cpp.own_products": True}):
        yield ran


def step(call: Any, layer: torch.nn.LSTM, x: torch.Tensor, *states: torch.Tensor) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in (x, *states)]
    out, (last, cell) = call(leaves[0], tuple(leaves[1:])) if states else call(leaves[0])
    total = (out * out.sin()).sum() + last.pow(3).sum() + cell.sin().sum()
    return [out, last, cell, *torch.autograd.grad(total, [*leaves, *layer.parameters()])]


def check(layer: torch.nn.LSTM, x: torch.Tensor, *states: torch.Tensor) -> None:
    compiled = argand.compile(layer, fullgraph=True)
    with torch.no_grad():
        given = (x, states) if states else (x,)
        want, got = ([out, *last] for out, last in (layer(*given), compiled(*given)))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    for a, b in zip(step(compiled, layer, x, *states), step(layer, layer, x, *states), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6 * float(b.detach().abs().max()) + 1e-6)
        assert a.stride() == b.stride()


@pytest.mark.parametrize(
    ("sizes", "batch_first", "ways"),
    sweeps.combinations([(2, 48, 20, 5, 9), (1, 16, 7, 37, 20)], [True, False], [1, 2]),
)
def test_lstm(sizes: tuple[int, ...], batch_first: bool, ways: int, calls: list[str]) -> None:
    layers, width, features, batch, steps = sizes
    torch.manual_seed(0)
    layer = torch.nn.LSTM(features, width, layers, steps < 10, batch_first, bidirectional=ways == 2)
    x = torch.randn(batch, steps, features) if batch_first else torch.randn(steps, batch, features)
    check(layer, x, torch.randn(layers * ways, batch, width), torch.randn(layers * ways, batch, width))
    assert calls.count("_own") == 2 * layers * ways and calls.count("_own_backward") == layers * ways


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [1, 7, 70])
def test_threads_that_share_rows_or_units_and_a_long_sum(threads: int, batch: int, calls: list[str]) -> None:
    """A weight that is larger than a cache is shared by its units, a smaller one by the rows of a large batch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for width in (128, 272):
            check(torch.nn.LSTM(8, width), torch.randn(5, batch, 8))
    finally:
        torch.set_num_threads(before)
    assert "_own_backward" in calls


def test_one_step_and_only_some_results() -> None:
    """Gradients of the last cell alone; expanded ones; a single step."""
    layer = torch.nn.LSTM(6, 32, bidirectional=True)
    compiled = argand.compile(layer, fullgraph=True)
    weights = list(layer.parameters())
    for steps in (1, 4):
        x = torch.randn(steps, 3, 6)
        for result in (
            lambda call: call(x)[1][1].sum(),
            lambda call: call(x)[0].sum(),
            lambda call: call(x)[0][-1].sum(),
        ):
            got, want = (torch.autograd.grad(result(call), weights, allow_unused=True) for call in (compiled, layer))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers(calls: list[str]) -> None:
    layer = torch.nn.LSTM(6, 32, 2, dropout=0.5)
    x = torch.randn(4, 3, 6)
    results = []
    with argand.config.patch(fallback_random=True):
        for call in (layer, argand.compile(layer, fullgraph=True)):
            torch.manual_seed(0)
            results.append(step(call, layer, x))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert calls.count("_own_backward") == 2


def test_numbers_that_are_none_or_large() -> None:
    layer = torch.nn.LSTM(4, 16)
    x, state = torch.randn(20, 4, 4), (torch.randn(1, 4, 16), torch.randn(1, 4, 16))
    x[3, 1, 2], x[5, 2], state[1][0, 3, 7] = float("nan"), 1e30, -1e4
    x[7, 0, 0] = float("inf")
    with torch.no_grad():
        got, want = argand.compile(layer)(x, state), layer(x, state)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_gradients_twice_of_one_forward() -> None:
    layer = torch.nn.LSTM(4, 16)
    loss = argand.compile(layer)(torch.randn(5, 3, 4))[0].square().sum()
    weights = list(layer.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, weights), first, rtol=0, atol=0)


@pytest.mark.parametrize("width", [20, 32])
def test_others_are_eagers(width: int, calls: list[str]) -> None:
    """Widths that fill no vectors; projections."""
    layer = torch.nn.LSTM(6, width, proj_size=8 if width == 32 else 0)
    check(layer, torch.randn(4, 3, 6))
    assert not calls


def test_lengths_that_vary(calls: list[str]) -> None:
    layer = torch.nn.LSTM(6, 32, batch_first=True)
    compiled = argand.compile(layer, dynamic=True)
    for batch, steps in ((3, 20), (4, 31), (7, 25)):
        x = torch.randn(batch, steps, 6)
        for got, want in zip(step(compiled, layer, x), step(layer, layer, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert calls.count("_own_backward") == 3


@pytest.mark.parametrize("own_is_slow", [True, False])
def test_the_faster_one_is_taken(own_is_slow: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a kind runs both; later ones the faster, and so do layers that are alike."""
    monkeypatch.setattr(timed_choice, "_SHORT", 1e9)  # one call decides
    rivals = Rivals(
        f"LSTM layers, own is {'slow' if own_is_slow else 'fast'}", lambda: True, 0.0 if own_is_slow else 1e9
    )
    monkeypatch.setattr(lstm, "TRAINED", rivals)
    lstm._compiled().result()
    layer = torch.nn.LSTM(6, 32)
    with argand.config.patch({"cpp.own_products": None}):
        compiled = argand.compile(layer)
        for x in (torch.randn(5, 3, 6), torch.randn(5, 3, 6)):
            calls.clear()
            got, want = (step(call, layer, x) for call in (compiled, layer))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert calls == ([] if own_is_slow else ["_own", "_own_backward"])


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        def result(self) -> dict[str, object]:
            return {}

    monkeypatch.setattr(lstm, "_compiled", Failed)
    check(torch.nn.LSTM(6, 32, 2, bidirectional=True), torch.randn(6, 3, 6))


def test_a_process_that_cannot_compile_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What argand's kernel kept, without a kernel for the backward."""

    class Failed:
        def result(self) -> dict[str, object]:
            return {}

    layer = torch.nn.LSTM(6, 32)
    x, weights = torch.randn(6, 3, 6), list(layer.parameters())
    loss = argand.compile(layer)(x)[0].square().sum()
    monkeypatch.setattr(lstm, "_compiled", Failed)
    want = torch.autograd.grad(layer(x)[0].square().sum(), weights)
    torch.testing.assert_close(torch.autograd.grad(loss, weights), want, rtol=1e-4, atol=1e-5)
