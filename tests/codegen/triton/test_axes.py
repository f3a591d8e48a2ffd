"""How loops are laid over blocks: reductions along which memory is not contiguous."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "schedule"))
from loop_programs import Builder, softmax  # noqa: E402

from argand.codegen.triton.axes import KernelAxes, lay_out  # noqa: E402
from argand.graph.sizes.expr import as_int, product  # noqa: E402
from argand.ir.target import gpu  # noqa: E402
from argand.schedule.pipeline import schedule  # noqa: E402

PROCESSORS = 132


def layouts(b: Builder, *outputs: Any) -> list[KernelAxes]:
    made = schedule(b.program(*outputs), targets=lambda _: gpu(PROCESSORS))
    return [lay_out(plan, PROCESSORS) for plan in made.kernels()]


def programs(axes: KernelAxes) -> int:
    return int(as_int(product(-(-axis.extent // axis.block) for axis in axes.grid)) or 0)


@pytest.mark.parametrize("columns", [768, 3072, 8192])
@pytest.mark.parametrize("rows", [1024, 4096, 16384])
def test_column_sums_read_lines_of_memory_by_all_processors(rows: int, columns: int) -> None:
    b = Builder()
    x = b.input(rows, columns, dtype=torch.bfloat16)
    wide = lambda o, v: o.to_dtype(v, torch.float32)  # noqa: E731
    first, second = layouts(b, b.reduce("sum", x, [0], fn=wide))
    x_axis, chunks = first.grid
    row = first.stages[0].row
    assert row is not None and row.looped and x_axis.block * 2 >= 128 and x_axis.block * row.block == 2048
    assert chunks.name == "p" and chunks.block == 1 and as_int(chunks.extent) * row.block * 2 <= rows
    assert first.num_warps == 4 and programs(first) <= 10 * PROCESSORS
    assert programs(first) >= min(4 * PROCESSORS, rows // 64 * columns // 64)
    assert second.stages[0].row is not None and second.grid[0].block * 4 >= 64


def test_few_rows_are_one_block() -> None:
    b = Builder()
    (axes,) = layouts(b, b.reduce("sum", b.input(32, 1 << 16), [0]))
    assert axes.stages[0].row is not None and not axes.stages[0].row.looped and axes.grid[0].block == 32


def test_many_results_at_once_have_more_threads() -> None:
    kinds = ("sum", "max", "min", "prod", "sum")
    for count, warps in ((4, 4), (5, 8)):
        b = Builder()
        x = b.input(4096, 768)
        squared = {4: lambda o, v: o.mul(v, v)}
        results = [b.reduce(kind, x, [0], fn=squared.get(n)) for n, kind in enumerate(kinds[:count])]
        assert layouts(b, *results)[0].num_warps == warps


def test_columns_that_later_stages_read_again_are_held_where_they_are_short() -> None:
    for rows, looped in ((200, False), (1000, True)):
        b = Builder()
        (axes,) = layouts(b, softmax(b, b.input(rows, 20_000), 0))
        assert len(axes.stages) == 3 and axes.grid[0].block >= 16
        assert all(stage.row is not None and stage.row.looped is looped for stage in axes.stages)


def test_short_rows_of_chunks_stay_together() -> None:
    b = Builder()
    first, _ = layouts(b, b.reduce("sum", b.input(1 << 16, 24), [0]))
    assert [axis.name for axis in first.grid] == ["x"]


@pytest.mark.parametrize("strides, sizes", [((8192, 4, 1, 32), [256, 4]), ((8192, 1024, 256, 1), None)])
def test_rows_are_walked_as_memory_lies(strides: tuple[int, ...], sizes: list[int] | None) -> None:
    """Sums over groups of 4 channels and 256 points, and what is computed from them: in one order, so that a row stays
    in registers."""
    b = Builder()
    x = b.buffer((2, 8, 4, 256), torch.float32, "input", stride=strides)
    total = b.reduce("sum", x, [2, 3], keepdim=True)
    out = b.buffer((2, 8, 4, 256), stride=strides)
    (axes,) = layouts(b, b.pointwise(lambda o, v, m: o.sub(v, m), x, total.expand(2, 8, 4, 256), out=out))
    rows = [stage.row for stage in axes.stages if stage.row is not None]
    walked = [[as_int(size) for _, size in row.loops] for row in rows]
    assert len(walked) == 2 and walked[0] == walked[1]
    assert walked[0] == sizes if sizes else product(size for _, size in rows[0].loops) is not None


def test_places_of_extremes_keep_the_order_of_their_row() -> None:
    b = Builder()
    x = b.buffer((2, 8, 4, 256), torch.float32, "input", stride=(8192, 4, 1, 32))
    (axes,) = layouts(b, b.reduce("argmax", x, [2, 3]))
    row = axes.stages[0].row
    assert row is not None and [as_int(size) for _, size in row.loops] == [4, 256]


@pytest.mark.parametrize("step", [1, 2])
def test_threads_side_by_side_read_from_places_apart(step: int) -> None:
    """As windows that move by two do: a point for each thread, not eight."""
    b = Builder()
    x, y = (b.input(64, 4096, step).permute(2, 0, 1).narrow(0, 0, 1) for _ in range(2))
    (axes,) = layouts(b, b.pointwise(lambda o, v, w: o.add(v, w), x, y))
    assert (axes.grid[0].block, axes.num_warps) == ((1024, 4) if step == 1 else (128, 4))


@pytest.mark.parametrize("rows", [64, 16384])
@pytest.mark.parametrize("length", [768, 4096])
def test_many_rows_have_fewer_threads_each(rows: int, length: int) -> None:
    b = Builder()
    (axes,) = layouts(b, softmax(b, b.input(rows, length)))
    assert axes.num_warps * 32 * (8 if rows == 64 else 16) == axes.grid[0].block * (1024 if length == 768 else 4096)
