"""Random numbers in compiled code: distribution, reproducibility, agreement of kernels with the op itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
from argand.graph.operators.random_ops import random_ops
from helpers import collected


def native(fn: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = argand.compile(fn, backend="native", fullgraph=True)
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_uniform(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = native(lambda: torch.rand(100_000, dtype=dtype) * 1)()
    assert x.dtype is dtype
    assert 0 <= float(x.min()) < 1e-3 and 0.999 < float(x.max()) < 1
    counts = torch.histc(x, 20, 0, 1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 50  # chi square of 19 degrees: 99.99 % lie below
    assert abs(float((x[1:] * x[:-1]).mean()) - 0.25) < 5e-3


def test_normal_numbers_are_normal() -> None:
    torch.manual_seed(0)
    x = native(lambda: torch.randn(200_000) + 0)()
    assert abs(float(x.mean())) < 1e-2 and abs(float(x.std()) - 1) < 1e-2
    assert abs(float((x.abs() < 1.96).float().mean()) - 0.95) < 3e-3
    assert float(x.abs().max()) > 4


def test_draws_like_a_tensor_that_is_not_laid_out_row_by_row() -> None:
    """In memory's order, by the graph's own numbers, where nothing but the layout is the tensor's."""

    def draw(*tensors: torch.Tensor) -> list[torch.Tensor]:
        drawn = [
            [torch.randn_like(x), torch.rand_like(x) * 2 - 1, torch.empty_like(x).uniform_(-1, 1)] for x in tensors
        ]
        return sum(drawn, [])

    base = torch.zeros(3, 50, 40, 20)
    last = base.contiguous(memory_format=torch.channels_last)
    ones = base[:1, :, :1].contiguous().permute(2, 3, 0, 1)
    torch.manual_seed(0)
    with collected("fallback") as fallbacks:
        results = native(draw)(base.transpose(1, 3), last, ones)
    assert not fallbacks
    assert [each.stride() for each in results] == [each.stride() for each in draw(base.transpose(1, 3), last, ones)]
    for each, deviation in zip(results, 3 * (1, 0.577, 0.577)):
        assert abs(float(each.std()) - deviation) < 0.06 and abs(float(each.mean())) < 0.1
        assert len(each.unique()) > 0.9 * each.numel()


def test_kernels_make_the_numbers_of_the_op() -> None:
    ops = random_ops()
    seed = torch.tensor(-123456789)
    want = ops.uniform(seed, [33, 17], dtype=torch.float32)
    got = native(lambda s: torch.ops.argand.uniform(s, [33, 17], dtype=torch.float32) * 1)(seed)
    assert torch.equal(want, got)
    assert len(want.unique()) > 550


def test_no_generator_is_torchs_own() -> None:
    """What libraries call that hand on a generator which may be None."""
    for draw in (torch.randn, torch.rand):
        torch.manual_seed(3)
        want = native(lambda draw=draw: draw(20) + 0)()
        torch.manual_seed(3)
        assert torch.equal(native(lambda draw=draw: draw((20,), generator=None, dtype=torch.float32) + 0)(), want)


def test_manual_seed_rules_compiled_code() -> None:
    fn = native(lambda x: F.dropout(x, 0.3) + torch.rand(64))
    x = torch.ones(64)
    torch.manual_seed(7)
    first, second = fn(x), fn(x)
    torch.manual_seed(7)
    assert torch.equal(fn(x), first)
    assert torch.equal(fn(x), second)
    assert not torch.equal(first, second)


def test_fallback_random_gives_eagers_numbers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        between = torch.empty(64).random_(2, 9)  # `aten.random.from`, which no line of Python can spell with a dot
        return F.dropout(x, 0.3) + torch.rand(64) + torch.randn_like(x) + between

    x = torch.ones(64)
    torch.manual_seed(7)
    want = fn(x)
    with argand.config.patch(fallback_random=True):
        torch.manual_seed(7)
        torch.testing.assert_close(native(fn)(x), want)


@pytest.mark.parametrize("draw", ["v.normal_()", "torch.randn(8, 8, out=v)", "torch.normal(x[:, :8], 1.0, out=v)", "torch.bernoulli(x[:, :8], out=v)", "torch.normal(x[:, :8].double(), 1.0, out=v)"])  # fmt: skip
@pytest.mark.parametrize("view", ["x[:, ::2]", "x[:, :8].clone().t()", "x[:, :8].clone()"])
def test_what_is_drawn_into_a_view_is_eagers(draw: str, view: str) -> None:
    """Kernels draw in memory's order, and normal numbers otherwise where rows are not next to each other."""
    fn: Any = eval(f"lambda x: [v := {view}, {draw}, x]", {"torch": torch})
    results = []
    with argand.config.patch(fallback_random=True):
        for each in (fn, native(fn)):
            torch.manual_seed(7)
            results.append([*each(torch.full((8, 16), 0.5)), torch.get_rng_state()])
    assert all(map(torch.equal, *results))


def test_two_dropouts_differ() -> None:
    a, b = native(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))(torch.ones(256))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_keeps_the_right_share(dtype: torch.dtype) -> None:
    y = native(lambda x: F.dropout(x, 0.25))(torch.ones(40_000, dtype=dtype))
    assert y.dtype is dtype
    assert abs(float((y != 0).float().mean()) - 0.75) < 0.01
    torch.testing.assert_close(y.float().max(), torch.tensor(4 / 3), rtol=1e-2, atol=1e-2)


def test_what_is_kept_of_a_dropout_is_a_mask_of_bytes() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    y = native(lambda x: F.dropout(x, 0.5) * 2)(x)
    grad_fn: Any = y.grad_fn
    assert [kept.dtype for kept in grad_fn.saved_tensors if kept.numel()] == [torch.bool]
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0).float() * 4)
