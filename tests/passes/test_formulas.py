"""Operations that are formulas over others, natively, against eager: without calls of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps
from helpers import collected

nan, inf = float("nan"), float("inf")
SPECIAL = torch.tensor([[nan, inf, -inf, 0.0, -0.0, 1.0, 2.5, -1.5]])


def same(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Eager's results, without a call of its kernels but products of matrices."""
    argand.reset()
    with collected("fallback") as seen:
        got = argand.compile(fn)(*args)
    for one, two in zip(got, fn(*args), strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, **options)
        assert one.stride() == two.stride()
    assert not [event.text() for event in seen]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_xlogy(dtype: torch.dtype) -> None:
    x, y = SPECIAL.to(dtype).expand(8, 8), SPECIAL.to(dtype).t().expand(8, 8)

    def fn(x: Any, y: Any) -> Any:
        mixed = torch.xlogy(x, y.double()), torch.xlogy(x[0, 5].double(), y)
        return torch.xlogy(x, y), torch.xlogy(x, 2.5), torch.xlogy(0, y), torch.xlogy(2, y), *mixed

    same(fn, x, y)


def test_divergence_and_its_gradients() -> None:
    x, y = torch.randn(5, 6, requires_grad=True), torch.rand(5, 6, requires_grad=True)

    def fn(x: Any, y: Any) -> Any:
        return torch.autograd.grad(F.kl_div(x.log_softmax(-1), y, reduction="batchmean"), (x, y))

    same(fn, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_and_its_gradients(dtype: torch.dtype, dim: int) -> None:
    v = torch.randn(6, 3, 5, dtype=dtype, requires_grad=True)
    g = torch.rand([6, 1, 1] if dim == 0 else [1, 1, 5], dtype=dtype).requires_grad_()
    weight = torch.randn(6, 3, 5, dtype=dtype)

    def fn(v: Any, g: Any) -> Any:
        normed = torch._weight_norm(v * 2, g, dim)
        return normed, *torch.autograd.grad((normed * weight).sum(), (v, g))

    same(fn, v, g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distances_by_a_product(dtype: torch.dtype) -> None:
    x, y = torch.randn(30, 5, dtype=dtype), torch.randn(40, 5, dtype=dtype)
    x[3] = y[3]
    same(lambda x, y: (torch.cdist(x, y), torch.cdist(x[None], y[None])), x, y, rtol=1e-6, atol=2e-3)
    z = x.clone().requires_grad_()
    same(lambda z, y: torch.autograd.grad(torch.cdist(z, y + 9).sum(), z), z, y, rtol=1e-4, atol=1e-4)


BLOCKS = (
    {"kernel_size": 2},
    {"kernel_size": (2, 3), "dilation": 2},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (2, 4), "stride": (2, 4)},
)


@pytest.mark.parametrize(("options", "dtype"), sweeps.chessboard(BLOCKS, [torch.float32, torch.bfloat16]), ids=str)
def test_blocks_of_images_and_back_with_gradients(options: dict[str, Any], dtype: torch.dtype) -> None:
    images = torch.randn(2, 3, 9, 10).to(dtype)
    blocks = F.unfold(images, **options)
    number = BLOCKS.index(options)
    for place, x in enumerate((images, images.to(memory_format=torch.channels_last), images[0])):
        same(lambda x: [F.unfold(x * 2, **options)], x)
        if place != number % 3 and not sweeps.WHOLE:
            continue
        same(lambda x: torch.autograd.grad(F.unfold(x, **options).square().sum(), x), x.detach().requires_grad_())
    for place, x in enumerate((blocks, blocks.transpose(1, 2).contiguous().transpose(1, 2), blocks[1])):
        same(lambda x: [F.fold(x, (9, 10), **options) + 1], x)
        if place != (number + 1) % 3 and not sweeps.WHOLE:
            continue
        same(
            lambda x: torch.autograd.grad(F.fold(x, (9, 10), **options).square().sum(), x), x.detach().requires_grad_()
        )


def test_blocks_of_images_of_any_size() -> None:
    def fn(x: Any) -> Any:
        return F.fold(F.unfold(x, 3, padding=1), (x.shape[-2], x.shape[-1]), 3, padding=1)

    compiled = argand.compile(fn, dynamic=True)
    for height, width in ((5, 6), (9, 4), (7, 11)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(compiled(x), fn(x))


def test_steps_traces_and_rolls() -> None:
    x, y = SPECIAL.expand(8, 8), torch.randn(8, 8)
    same(lambda x, y: [torch.heaviside(x, y), torch.heaviside(x.double(), y.double())], x, y)
    same(lambda y: [torch.trace(y), torch.trace(y[:3].to(torch.int8)), torch.trace(y[:, :5])], y)
    same(lambda y: [y.roll(3), y.t().roll(-5), y[:3, ::2].roll(100)], y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_silu_are_rounded_once(dtype: torch.dtype) -> None:
    x, g = torch.randn(64, 40).to(dtype).requires_grad_(), torch.randn(64, 40).to(dtype)
    want, got = (torch.autograd.grad(f(x), x, g)[0] for f in (F.silu, argand.compile(F.silu)))
    assert (want == got).float().mean() > 0.98  # spelt out, each operation rounded, less than half are


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_entropy_of_probabilities(dtype: torch.dtype, reduction: str) -> None:
    x = torch.tensor([[0.0, 1.0, 0.3, 1e-30], [1e-7, 0.5, 1.0, 0.0]], dtype=dtype, requires_grad=True)
    y, weight = torch.tensor([[0.0, 1.0, 0.2, 1.0], [0.0, 1.0, 0.0, 1.0]], dtype=dtype), torch.rand(4).to(dtype)

    def fn(x: Any, y: Any, weight: Any) -> Any:
        losses = [F.binary_cross_entropy(x, y, each, reduction=reduction) for each in (None, weight)]
        return *losses, *torch.autograd.grad(losses[1].sum(), (x,))

    same(fn, x, y, weight)


def test_windows_and_logarithmic_spaces() -> None:
    def fn(x: Any) -> Any:
        windows = [torch.hann_window(7), torch.hamming_window(7, False), torch.hamming_window(7, True, 0.6)]
        windows += [torch.hamming_window(7, True, 0.6, 0.3), torch.blackman_window(7, dtype=torch.float64)]
        spaces = torch.logspace(0, 3, 7), torch.logspace(-1, 2, 7, base=2, dtype=torch.float64)
        return (
            *windows,
            *spaces,
            torch.hann_window(x.shape[0]) * x,
            torch.block_diag(x[None], x[:, None], x.expand(2, 7)),
        )

    same(fn, torch.randn(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wide_pads_and_products_of_vectors(dtype: torch.dtype) -> None:
    pads = {(2, 9): (40, 30), (2, 1): (0, 30), (3, 5, 6): (7, 8, 9, 0), (2, 3, 4): (0, 0, 29, 1)}
    leaves = [torch.randn(size, dtype=dtype, requires_grad=True) for size in pads]

    def fn(*leaves: Any) -> Any:
        padded = [F.pad(x * 2, pad, mode="replicate") for x, pad in zip(leaves, pads.values())]
        flat = padded[0].flatten(), padded[1].flatten()[:1].expand(padded[0].numel())
        sums = [flat[0].dot(flat[1]), torch.vdot(*flat), flat[0][:0] @ flat[1][:0]]
        ends = sum((x.square() * torch.arange(x.numel()).view(x.shape)).sum() for x in padded)
        return *sums, *torch.autograd.grad(ends + sums[0], leaves)

    same(fn, *leaves)


def test_rows_repeated_to_a_size_that_is_known() -> None:
    def fn(x: Any, count: Any) -> Any:
        rows = x.repeat_interleave(count, 0, output_size=2 * x.shape[0]) * 2
        return rows, torch.repeat_interleave(count, output_size=8), *torch.autograd.grad((rows * rows).sum(), x)

    same(fn, torch.randn(4, 5, requires_grad=True), torch.tensor([1, 0, 4, 3]))
