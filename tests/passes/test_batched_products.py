"""Operands of batched products are moved to where a library reads them, and only those that are not there."""

from __future__ import annotations

import itertools

import pytest
import torch
from pass_helpers import traced

import argand
from argand.passes.pipeline import run_passes

ORDERS = list(itertools.permutations(range(3)))


def placed(order: tuple[int, ...], *size: int) -> torch.Tensor:
    """Random numbers whose dimensions lie in memory in this order."""
    memory = torch.randn([size[dim] for dim in order])
    return memory.permute([order.index(dim) for dim in range(3)])


def copies(x: torch.Tensor, y: torch.Tensor) -> int:
    graph = run_passes(traced(torch.bmm, x, y)).graph
    assert any(node.target is torch.ops.aten.bmm.default for node in graph.nodes)
    return sum(node.target is torch.ops.aten.clone.default for node in graph.nodes)


@pytest.mark.parametrize("order", ORDERS)
def test_matrices_without_neighbours_are_laid_out(order: tuple[int, ...]) -> None:
    x, y = placed(order, 6, 7, 9), torch.randn(6, 9, 11)
    assert copies(x, y) == (order[-1] == 0)


def test_small_products_and_symbols_stay() -> None:
    assert copies(placed((1, 2, 0), 5, 3, 4), torch.randn(5, 4, 6)) == 0  # 72 terms


def test_complex_matrices_are_laid_out_too() -> None:
    x, y = placed((1, 2, 0), 6, 7, 9), torch.randn(6, 9, 11)
    assert copies(x.to(torch.complex64), y.to(torch.complex64)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("orders", list(itertools.product(ORDERS, ((0, 1, 2), (1, 2, 0)))))
def test_results_are_eagers(orders: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype) -> None:
    def products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.bmm(x, y), torch.baddbmm(z, x * 2, y, beta=0.5, alpha=2)

    x, y, z = (
        placed(orders[0], 6, 7, 9).to(dtype),
        placed(orders[1], 6, 9, 11).to(dtype),
        torch.randn(6, 1, 11).to(dtype),
    )
    for one, two in zip(argand.compile(products)(x, y, z), products(x, y, z), strict=True):
        torch.testing.assert_close(one, two)
        assert one.stride() == two.stride()
