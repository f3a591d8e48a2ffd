"""Look-ups and scatters: bounds, negative indices, error flag, accumulation without races."""

from __future__ import annotations

import pytest
import torch
from cpp_kernels import body, buffer, check, compile_plan, plan

from argand.graph.sizes.expr import Sym, Var

F32, I64 = torch.float32, torch.int64


def embedding_plan(rows, columns, count, wrap=False):
    def record(o, i, j):
        var = o.indirect_var(o.load("i", i, I64), rows, wrap)
        o.store("c", columns * i + j, o.load("w", columns * var + j, F32))

    return plan(
        [body([count, columns], record)],
        [buffer("w", F32, [rows, columns]), buffer("i", I64, [count])],
        [buffer("c", F32, [count, columns])],
    )


@pytest.mark.parametrize("columns", [5, 64, 100])
def test_rows_are_copied_by_vectors(columns):
    made = embedding_plan(30, columns, 11)
    text = check(made, [torch.randn(30, columns), torch.randint(0, 30, (11,))], [torch.empty(11, columns)])
    assert "load<f32x" in text or "load_tail<f32x" in text


def test_out_of_range_sets_the_flag_and_stays_inside():
    run, _ = compile_plan(embedding_plan(30, 64, 11))
    for bad in (30, -1, 1 << 40):
        index = torch.zeros(11, dtype=I64)
        index[7] = bad
        assert run([torch.randn(30, 64), index, torch.empty(11, 64)]) == 1
    run, _ = compile_plan(embedding_plan(30, 64, 11, wrap=True))
    weight, out = torch.randn(30, 64), torch.empty(11, 64)
    assert run([weight, torch.full((11,), -2), out]) == 0
    assert torch.equal(out, weight[torch.full((11,), -2)])
    assert run([weight, torch.full((11,), -31), out]) == 1


def test_empty_table():
    rows = Sym("s0", 0)

    def record(o, i):
        var = o.indirect_var(o.load("i", i, I64), rows, True)
        o.store("c", i, o.load("w", var, F32))

    made = plan(
        [body([4], record)], [buffer("w", F32, [rows]), buffer("i", I64, [4])], [buffer("c", F32, [4])], symbols=["s0"]
    )
    run, _ = compile_plan(made)
    assert run([torch.empty(0), torch.zeros(4, dtype=I64), torch.empty(4)], [0]) == 1
    assert run([torch.ones(2), torch.zeros(4, dtype=I64), torch.empty(4)], [2]) == 0


@pytest.mark.parametrize("index_dtype", [I64, torch.int32])
def test_gather_along_lanes(index_dtype):
    def record(o, i, j):
        var = o.indirect_var(o.to_dtype(o.load("i", 37 * i + j, index_dtype), I64), 50, True)
        o.store("c", 37 * i + j, o.load("w", 50 * i + var, F32))

    made = plan(
        [body([3, 37], record)],
        [buffer("w", F32, [3, 50]), buffer("i", index_dtype, [3, 37])],
        [buffer("c", F32, [3, 37])],
    )
    check(made, [torch.randn(3, 50), torch.randint(-50, 50, (3, 37)).to(index_dtype)], [torch.empty(3, 37)])


def test_lookup_only_where_the_mask_is_true():
    def record(o, i):
        found = o.load("i", i, I64)

        def block():
            var = o.indirect_var(found, 10, False)
            return o.load("w", var, F32)

        o.store("c", i, o.masked(o.ge(found, o.const(0, I64)), block, -1.0))

    made = plan([body([40], record)], [buffer("w", F32, [10]), buffer("i", I64, [40])], [buffer("c", F32, [40])])
    index = torch.randint(0, 10, (40,))
    index[::3] = -100
    check(made, [torch.randn(10), index], [torch.empty(40)])


@pytest.mark.parametrize("dtype", [F32, torch.float64, I64, torch.bfloat16])
def test_scatter_add_with_equal_targets(dtype):
    def record(o, i):
        var = o.indirect_var(o.load("i", i, I64), 7, False)
        o.store("c", var, o.load("a", i, dtype), "add")

    made = plan([body([100], record)], [buffer("a", dtype, [100]), buffer("i", I64, [100])], [buffer("c", dtype, [7])])
    a = torch.randint(-8, 8, (100,)).to(dtype)
    check(made, [a, torch.randint(0, 7, (100,))], [torch.ones(7, dtype=dtype)])


@pytest.mark.parametrize("columns", [48, 768, 1000])
def test_embedding_gradient(columns):
    rows, count = 20, 300

    def record(o, i, j):
        var = o.indirect_var(o.load("i", i, I64), rows, False)
        o.store("c", columns * var + j, o.load("g", columns * i + j, F32), "add")

    made = plan(
        [body([count, columns], record)],
        [buffer("g", F32, [count, columns]), buffer("i", I64, [count])],
        [buffer("c", F32, [rows, columns])],
    )
    g, index = torch.randn(count, columns), torch.randint(0, rows, (count,))
    expected = torch.zeros(rows, columns).index_add_(0, index, g)
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        out = torch.zeros(rows, columns)
        assert run([g, index, out]) == 0
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_last_write_wins_in_a_scatter():
    def record(o, i):
        var = o.indirect_var(o.load("i", i, I64), 5, False)
        o.store("c", var, o.load("a", i, F32))

    made = plan([body([64], record)], [buffer("a", F32, [64]), buffer("i", I64, [64])], [buffer("c", F32, [5])])
    index = torch.arange(64) % 5
    run, _ = compile_plan(made)
    out = torch.zeros(5)
    run([torch.arange(64.0), index, out])
    assert out.tolist() == [60.0, 61.0, 62.0, 63.0, 59.0]


def test_lookup_in_an_outer_loop():
    outer = [(Var("x0"), 6)]
    outer = [(var, buffer("n", F32, [size]).size[0]) for var, size in outer]

    def copy(o, x, y):
        var = o.indirect_var(o.load("i", x, I64), 9, False)
        o.store("e", y, o.load("w", 40 * var + y, F32))

    def double(o, x, y):
        o.store("c", 40 * x + y, o.mul(o.load("e", y, F32), o.const(2.0)))

    made = plan(
        [body([40], copy, (), outer), body([40], double, (), outer)],
        [buffer("w", F32, [9, 40]), buffer("i", I64, [6])],
        [buffer("c", F32, [6, 40])],
        outer=outer,
        scratch=[buffer("e", F32, [40])],
    )
    check(made, [torch.randn(9, 40), torch.randint(0, 9, (6,))], [torch.empty(6, 40)])
