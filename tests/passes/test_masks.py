"""Writes of one value after the other where a mask is true, natively, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import collected

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool)


def same(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> None:
    """Eager's results, without a call of its kernels."""
    argand.reset()
    with collected("fallback") as seen:
        got = argand.compile(fn, dynamic=dynamic, fullgraph=True)(*args)
    for one, two in zip(got, fn(*args), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
        assert one.stride() == two.stride()
    assert not [event.text() for event in seen]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_values_of_a_mask(dtype: torch.dtype, accumulate: bool) -> None:
    if accumulate and dtype is torch.bool:
        return
    torch.manual_seed(0)
    x = (torch.randn(3, 4, 6) * 3).to(dtype)
    mask = torch.rand(3, 4, 6) < 0.5
    one, two = (
        x.flatten()[: int(mask.sum())].neg() if dtype is not torch.bool else x.flatten()[: int(mask.sum())],
        x[0, 0],
    )

    def write(x: Any, mask: Any, one: Any, two: Any) -> Any:
        def put(*indices: Any, values: Any, to: Any = x) -> Any:
            return torch.index_put(to, indices, values, accumulate=accumulate)

        turned = x.transpose(0, 2)
        whole = put(mask, values=one), put(mask, values=two[0]), put(mask, values=two[:1])
        return *whole, put(mask[:, :, 0], values=two), put(mask.transpose(0, 2), values=one, to=turned)

    same(write, x, mask, one, two)


def test_rows_of_a_mask_and_a_mask_of_inner_dimensions() -> None:
    torch.manual_seed(0)
    x, rows, inner = torch.randn(5, 4, 6), torch.tensor([True, False, True, True, False]), torch.rand(4, 6) < 0.5
    count = int(inner.sum())

    def write(x: Any, rows: Any, inner: Any, some: Any, each: Any) -> Any:
        y = x.clone()
        y[rows] = some
        z = x.clone()
        z[:, inner] = each[:1]
        return y, z, torch.ops.aten.index_put(x, (None, inner), each)

    same(write, x, rows, inner, torch.randn(3, 4, 6), torch.randn(5, count))
    same(write, x, rows, inner, torch.randn(3, 1, 6), torch.randn(1, count))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_scatter(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, mask, source = (torch.randn(3, 4) * 3).to(dtype), torch.rand(3, 4) < 0.5, (torch.randn(4, 5) * 3).to(dtype)
    same(
        lambda x, m, s: (x.masked_scatter(m, s), x[0].masked_scatter(m, s.t()), x.masked_scatter(m[:1], s)),
        x,
        mask,
        source,
    )


def test_gradients_of_masked_scatter() -> None:
    torch.manual_seed(2)
    x, source = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    mask = torch.rand(3, 4) < 0.5

    def step(x: Any, m: Any, s: Any) -> Any:
        return torch.autograd.grad((x.masked_scatter(m, s) ** 2).sum(), (x, s))

    same(step, x, mask, source)


def test_as_many_values_as_places() -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    x = torch.zeros(2, 3)
    put = argand.compile(lambda x, m, v: torch.index_put(x, (m,), v) + 1, dynamic=False)
    scatter = argand.compile(lambda x, m, v: x.masked_scatter(m, v) + 1, dynamic=False)
    for call in (put, scatter):
        torch.testing.assert_close(call(x, mask, torch.ones(4)), x + mask.float() + 1)
    for other in (~mask, torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(RuntimeError):
            put(x, other, torch.ones(4))
    with pytest.raises(RuntimeError):
        scatter(x, torch.ones(2, 3, dtype=torch.bool), torch.ones(4))
    torch.testing.assert_close(scatter(x, ~mask, torch.ones(4)), x + 1 + (~mask).float())


def test_sizes_that_vary() -> None:
    write = argand.compile(lambda x, m, v: torch.index_put(x, (m,), v) * 2, dynamic=True)
    for rows in range(2, 7):
        torch.manual_seed(rows)
        x, mask = torch.randn(rows, 5), torch.rand(rows, 5) < 0.5
        values = torch.randn(int(mask.sum()))
        torch.testing.assert_close(write(x, mask, values), torch.index_put(x, (mask,), values) * 2)
