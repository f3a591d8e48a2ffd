"""GRUs on a CPU, whose steps are one kernel of argand's: eager's results and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand.runtime.kernels import gru
from helpers import texts_of

pytestmark = pytest.mark.skipif(not gru.takes(16), reason="needs AVX2 and GCC")


@pytest.fixture(autouse=True)
def code() -> Iterator[list[str]]:
    """Host modules written."""
    argand.reset()
    with texts_of("output_code") as texts:
        yield texts


def gradients(call: Any, layer: torch.nn.GRU, *inputs: torch.Tensor) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    out, last = call(*leaves)
    total = (out * out.sin()).sum() + last.pow(3).sum()
    return [out, last, *torch.autograd.grad(total, [*leaves, *layer.parameters()])]


def check(layer: torch.nn.GRU, *inputs: torch.Tensor) -> None:
    compiled = argand.compile(layer, fullgraph=True)
    with torch.no_grad():
        for got, want in zip(compiled(*inputs), layer(*inputs), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    for got, want in zip(gradients(compiled, layer, *inputs), gradients(layer, layer, *inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-6 * float(want.detach().abs().max()) + 1e-6)
        assert got.stride() == want.stride()


@pytest.mark.parametrize(
    ("sizes", "batch_first", "ways", "bias"),
    sweeps.combinations([(2, 48, 20, 5, 33), (1, 16, 7, 37, 20)], [True, False], [1, 2], [True, False]),
)
def test_gru(sizes: tuple[int, ...], batch_first: bool, ways: int, bias: bool, code: list[str]) -> None:
    layers, width, features, batch, steps = sizes
    torch.manual_seed(0)
    layer = torch.nn.GRU(features, width, layers, bias, batch_first, bidirectional=ways == 2)
    x = torch.randn(batch, steps, features) if batch_first else torch.randn(steps, batch, features)
    check(layer, x, torch.randn(layers * ways, batch, width))
    assert any("recurrence_keeping" in text for text in code)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [1, 7, 70])
def test_threads_that_share_rows_or_units_and_a_long_sum(threads: int, batch: int) -> None:
    """A weight that is larger than a cache is shared by its units, a smaller one by the rows of a large batch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for width in (208, 336):
            check(torch.nn.GRU(8, width), torch.randn(17, batch, 8), torch.randn(1, batch, width))
    finally:
        torch.set_num_threads(before)


def test_numbers_that_are_none_or_large() -> None:
    layer = torch.nn.GRU(4, 16)
    x, start = torch.randn(20, 4, 4), torch.randn(1, 4, 16)
    x[3, 1, 2], x[5, 2], start[0, 3, 7] = float("nan"), 1e30, -1e4
    x[7, 0, 0] = float("inf")
    with torch.no_grad():
        got, want = argand.compile(layer)(x, start), layer(x, start)
    torch.testing.assert_close(got, want, equal_nan=True)


def test_only_what_is_asked_for() -> None:
    """Weights without gradients, an input without."""
    layer = torch.nn.GRU(6, 32, 2)
    layer.weight_hh_l0.requires_grad_(False)
    layer.bias_ih_l1.requires_grad_(False)
    x = torch.randn(20, 3, 6)
    wanted = [each for each in layer.parameters() if each.requires_grad]
    got = torch.autograd.grad(argand.compile(layer)(x)[0].square().sum(), wanted)
    want = torch.autograd.grad(layer(x)[0].square().sum(), wanted)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [20, 32])
def test_others_are_eagers(width: int, code: list[str]) -> None:
    """Widths that fill no vectors; doubles."""
    kind = torch.float64 if width == 32 else torch.float32
    layer = torch.nn.GRU(6, width, dtype=kind)
    check(layer, torch.randn(20, 3, 6, dtype=kind), torch.randn(1, 3, width, dtype=kind))
    assert not any("recurrence_keeping" in text for text in code)


def test_lengths_that_vary() -> None:
    layer = torch.nn.GRU(6, 32, batch_first=True)
    compiled = argand.compile(layer, dynamic=True)
    for batch, steps in ((3, 20), (4, 31), (7, 25)):
        x = torch.randn(batch, steps, 6)
        got = torch.autograd.grad(compiled(x)[0].square().sum(), list(layer.parameters()))
        want = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        def result(self) -> dict[str, object]:
            return {}

    monkeypatch.setattr(gru, "_compiled", Failed)
    check(torch.nn.GRU(6, 32, 2, bidirectional=True), torch.randn(20, 3, 6), torch.randn(4, 3, 32))
