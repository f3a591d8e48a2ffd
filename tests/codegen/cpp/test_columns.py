"""Sums over rows: several vectors of columns side by side, in pieces of which threads have about equally many; tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import argand
import sweeps
from argand.codegen.cpp.kernel import _even_chunk
from argand.runtime import toolchain


@pytest.mark.parametrize(
    ("size", "threads", "wanted"),
    [(144, 2, 80), (96, 2, 48), (32, 2, 16), (192, 2, 96), (576, 2, 96), (960, 4, 80), (16, 2, 16), (100, 1, 112)],
)
def test_pieces(size: int, threads: int, wanted: int) -> None:
    assert _even_chunk(size, 16, 1e4, threads) == wanted


def test_pieces_are_not_too_small() -> None:
    assert _even_chunk(64, 16, 1.0, 2) == 0


@pytest.mark.parametrize(
    ("columns", "threads"), sweeps.chessboard([16, 24, 33, 50, 80, 96, 113, 144, 250], [1, 2, 3]), ids=str
)
def test_results(columns: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(3000, columns)

        def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.mean(0), (x - x.mean(0)).square().sum(0), x.amax(0)

        for found, want in zip(argand.compile(moments)(x), moments(x), strict=True):
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("columns", [600, 517])
def test_rows_in_turn(columns: int) -> None:
    """Sums of columns that are computed with what goes through the same rows, and alone; few rows and many."""
    x, g, w = (torch.randn(1200, columns, requires_grad=True) for _ in range(3))
    many, few = w[0].detach().requires_grad_(), x[:50].detach()

    def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (columns,), w)

    def of_few(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.amax(0).exp(), (x.bfloat16() * 2).sum(0), (x.sigmoid() / (x.cos() + 3)).sum(0)

    want = torch.autograd.grad(normed(x.double(), many.double()), (x, many), g.double())
    found = torch.autograd.grad(argand.compile(normed)(x, many), (x, many), g)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(argand.compile(of_few)(few), of_few(few))


@pytest.mark.skipif(toolchain.cpu_isa().vector_bytes < 64, reason="rows of 32 bytes are transposed where they are")
def test_tiles_of_bytes_share_one_transpose(tmp_path: Path) -> None:
    """Its shuffles at each tile of a kernel are what g++ takes seconds for."""

    def size(tiles: int) -> int:
        given = [torch.randint(0, 9, (70, 70), dtype=torch.int8) for _ in range(tiles + 1)]

        def columns(x: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
            for row in rows:
                x = x + row.t()
            return x

        folder = tmp_path / str(tiles)
        with argand.config.patch(cache_dir=str(folder)):
            assert torch.equal(argand.compile(columns)(*given), columns(*given))
        (library,) = folder.glob("kernels/*.so")
        return library.stat().st_size

    assert size(6) < 1.5 * size(1)
