"""Distances of all pairs of rows as loops, natively, with what is no number, and their gradients, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
import sweeps
from helpers import collected

nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "p", "columns"),
    sweeps.combinations([torch.float32, torch.float64], [0.0, 1.0, 2.0, 2.5, inf], [1, 5, 40]),
    ids=str,
)
def test_distances_and_gradients(p: float, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(columns)
    x, y = torch.randn(2, 7, columns, dtype=dtype), torch.randn(2, 9, columns, dtype=dtype)
    x[0, 0, 0], x[0, 1, -1], x[1, 2] = nan, inf, y[1, 3]
    x[1, 4], y[1, 4] = 0.0, 0.0
    weight = torch.randn(2, 7, 9, dtype=dtype)

    def fn(x: Any, y: Any) -> Any:
        far = torch.cdist(x, y, p=p)
        plain = torch.cdist(x[0], y[0], p=p), torch.cdist(x.mT, y[:, :7].mT, p=p)
        return far, *plain, *torch.autograd.grad((far * weight).sum(), (x, y))

    leaves = x.requires_grad_(), y.requires_grad_()
    with collected("fallback") as seen:
        got = argand.compile(fn)(*leaves)
    for one, two in zip(got, fn(*leaves), strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, rtol=1e-4, atol=1e-5)
        assert one.stride() == two.stride()
    assert not [event.data for event in seen]


def test_many_rows() -> None:
    x, y = torch.randn(60, 3), torch.randn(33, 3)
    mode = "donot_use_mm_for_euclid_dist"

    def fn(x: Any, y: Any) -> Any:
        return torch.cdist(x, y, compute_mode=mode) + 1, torch.cdist(x, y, p=1.0), torch.cdist(x, y, p=3.0)

    for one, two in zip(argand.compile(fn)(x, y), fn(x, y), strict=True):
        torch.testing.assert_close(one, two)
