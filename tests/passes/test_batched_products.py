"""Operands of products are moved to where a library reads them, and only those that are not there."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from pass_helpers import traced

import argand
import sweeps
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
    assert copies(x.to(torch.complex64), y.to(torch.complex64)) == 2  # of the parts, in one loop


@pytest.mark.parametrize(
    ("dtype", "orders"),
    sweeps.chessboard(
        [torch.float32, torch.float64, torch.bfloat16, torch.complex64],
        list(itertools.product(ORDERS, ((0, 1, 2), (1, 2, 0)))),
    ),
)
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


def product_places(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[tuple[bool, bool]]:
    """Of each product of matrices in the graph, whether each of its sides lies row by row."""
    nodes = [node for node in run_passes(traced(function, *args)).graph.nodes if str(node.target) in PRODUCTS]
    return [tuple(arg.meta["val"].stride(-1) == 1 for arg in node.args) for node in nodes]  # type: ignore[misc]


PRODUCTS = ("aten.mm.default", "aten.bmm.default")


@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_of_few_columns_are_turned_where_a_library_is_slow(batch: tuple[int, ...]) -> None:
    large, few, more = torch.randn(*batch, 300, 96), torch.randn(*batch, 96, 3), torch.randn(*batch, 96, 7)
    assert product_places(torch.matmul, large, more) == [(True, False)]  # columns that lie one behind the other
    for each in (few, few.mT.contiguous().mT):
        assert product_places(torch.matmul, large, each) == [(True, False)]  # (few', large')
    transposed = large.mT.contiguous().mT
    assert product_places(torch.matmul, transposed, few) == [(False, True)]  # (few', large')
    assert product_places(torch.matmul, transposed, torch.randn(*batch, 96, 40)) == [(False, True)]
    compiled = argand.compile(torch.matmul, fullgraph=True)
    for left, right in itertools.product((large, transposed), (few, few.mT.contiguous().mT, more)):
        want, got = left @ right, compiled(left, right)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_few_columns_with_a_bias_and_gradients() -> None:
    x, weight, bias = torch.randn(64, 500).t() / 8, torch.randn(64, 5), torch.randn(5)

    def step(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
        result = call(*leaves)
        result.sin().sum().backward()
        return [result, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight)

    torch.testing.assert_close(step(argand.compile(function, fullgraph=True)), step(function))


@pytest.mark.parametrize("size", [(6, 7, 6), (6, 7, 9), (9, 4, 5)], ids=str)
def test_only_the_diagonal_of_a_product_is_computed(size: tuple[int, int, int]) -> None:
    rows, terms, columns = size
    x, y = torch.randn(2, rows, terms), torch.randn(2, terms, columns)

    def traces(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of_matrices = (x[0] @ y[0]).diagonal().exp()
        return torch.bmm(x, y).diagonal(dim1=-1, dim2=1).sum(-1), of_matrices, torch.bmm(x, y).diagonal(1, 1, 2).sum(-1)

    program = run_passes(traced(traces, x, y))
    products = [
        node for node in program.graph.nodes if node.target in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
    ]
    assert len(products) == 1  # whose diagonal is another one
    for want, got in zip(traces(x, y), argand.compile(traces)(x, y)):
        torch.testing.assert_close(got, want)
