"""Large sums in float32 are as accurate as eager's, against float64, whatever the layout and the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import argand

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "sum of squares": lambda x, dims: (x * x).sum(dims),
    "var": lambda x, dims: x.var(dims),
    "norm": lambda x, dims: torch.linalg.vector_norm(x, dim=dims),
    "logsumexp": lambda x, dims: torch.logsumexp(x, dims),
    "two at once": lambda x, dims: x.sum(dims) + (x * x).sum(dims),
}
SHAPES = [(3, 200_001), (70_000, 5), (4, 16, 90, 90), (2, 300, 40, 17), (1_000_003,), (33, 7, 3001)]


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, relative to the largest result."""
    return float((got.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def as_accurate(fn: Callable[..., torch.Tensor], *args: Any) -> None:
    """At most four times eager's error, where that is above two roundings."""
    argand.reset()
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    exact = fn(*wide)
    eager, native = error(fn(*args), exact), error(argand.compile(fn)(*args), exact)
    assert native <= max(4 * eager, 4 * torch.finfo(torch.float32).eps), (native, eager)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.sampled_from(sorted(REDUCTIONS)), st.sampled_from(SHAPES), st.data())
def test_reductions(name: str, shape: tuple[int, ...], data: Any) -> None:
    dims = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    order = data.draw(st.permutations(range(len(shape))))
    offset = data.draw(st.sampled_from([0.0, 1.0, 30.0]))
    torch.manual_seed(0)
    x = (torch.randn([shape[d] for d in order]) + offset).permute([order.index(d) for d in range(len(shape))])
    if name == "var" and all(shape[d] == 1 for d in dims):
        return
    as_accurate(lambda x: REDUCTIONS[name](x, sorted(dims)), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_gradients(layout: torch.memory_format, training: bool) -> None:
    torch.manual_seed(0)
    x = (torch.randn(8, 12, 61, 63) + 3).contiguous(memory_format=layout)
    grad = torch.randn_like(x) + 1
    mean, var, weight, bias = torch.randn(12), torch.rand(12) + 0.5, torch.randn(12), torch.randn(12)

    def step(x: Any, grad: Any, mean: Any, var: Any, weight: Any, bias: Any, which: int = 0) -> torch.Tensor:
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        out = call(leaves[0], mean.clone(), var.clone(), leaves[1], leaves[2])
        return torch.autograd.grad(out, leaves, grad)[which]

    def norm(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> torch.Tensor:
        return F.batch_norm(x, mean, var, weight, bias, training)

    args = (x, grad, mean, var, weight, bias)
    wide = [a.double() for a in args]
    for which in range(3):
        call: Any = norm
        exact, eager = step(*wide, which=which), step(*args, which=which)
        call = argand.compile(norm)
        native = error(step(*args, which=which), exact)
        assert native <= max(4 * error(eager, exact), 4 * torch.finfo(torch.float32).eps), which


@pytest.mark.parametrize("fn", [lambda x: F.layer_norm(x, x.shape[1:]), lambda x: F.softmax(x, 1), lambda x: x.std(0)])
def test_rows_of_many_elements(fn: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    as_accurate(fn, torch.randn(3, 150_000) * 2 + 1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_in_inference_rounds_as_eager_does(layout: torch.memory_format) -> None:
    """A relu behind it cuts where eager's does: an element that is 0 in one and 1e-8 in the other changes gradients
    by far more than roundings do (seen with ResNet-18: 2.6e-4 of the largest gradient)."""
    torch.manual_seed(0)
    mean, var, weight, bias = torch.randn(256), torch.rand(256) + 0.1, torch.randn(256), torch.randn(256)
    x = (torch.randn(4, 256, 14, 14) * 3 + 1).contiguous(memory_format=layout)
    for affine in ((weight, bias), (None, None), (weight, None)):

        def norm(x: torch.Tensor, affine: Any = affine) -> torch.Tensor:
            return F.batch_norm(x, mean, var, *affine)

        want, got = norm(x), argand.compile(norm)(x)
        assert torch.equal(got > 0, want > 0)
        torch.testing.assert_close(got, want, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_numbers_whose_squares_overflow_or_vanish(dtype: torch.dtype) -> None:
    """Eager's kernels have moments in float64; a norm over one element is its size."""

    def moments(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.std(0), x.std(-1), x.var(-1), *torch.var_mean(x, 0), x[:1].norm(dim=0), x[:, :1].norm(3, 1)]

    torch.manual_seed(0)
    unit, limits = torch.rand(4, 9, dtype=torch.float64) - 0.5, torch.finfo(dtype)
    compiled = argand.compile(moments)
    kinds = ((limits.max, 0), (limits.max**0.5, 0), (limits.tiny, 0), (0, limits.max), (1, 0.1 / limits.eps))
    for scale, offset in kinds:
        x = (unit * scale + offset).to(dtype)
        for got, want in zip(compiled(x), moments(x)):
            torch.testing.assert_close(got, want, rtol=2 * limits.eps, atol=0)
