"""Reductions: every kind along and across lanes, long sums, positions, several stages, threads."""

from __future__ import annotations

import math
import re

import pytest
import torch
from cpp_kernels import body, buffer, check, compile_plan, plan, sample

import argand
import sweeps
from argand.graph.sizes.expr import Sym, Var, as_expr
from argand.lower.ops import REDUCTIONS

F32 = torch.float32


def reduction_plan(kinds, dtype, size, reduced, index, out_size, threads=None):
    """Reduce `a` over `reduced` loops; `index(vars)` is where it is read."""

    def record(o, *variables):
        x = o.load("a", index(*variables), dtype)
        own = variables[: len(size)]
        place = as_expr(0)
        for var, n in zip(own, size):
            place = place * n + var
        for kind in kinds:
            o.store(f"c_{kind}", place, o.reduction(kind, x))

    outputs = [buffer(f"c_{k}", torch.int64 if k.startswith("arg") else dtype, out_size) for k in kinds]
    total = math.prod([int(n) for n in (*size, *reduced)])
    return plan([body(size, record, reduced)], [buffer("a", dtype, [total])], outputs), outputs


def empty(outputs):
    return [torch.zeros(tuple(int(n) for n in b.size), dtype=b.dtype) for b in outputs]


def kinds_for(dtype):
    if dtype == torch.bool:
        return ["any"]
    return [kind for kind in REDUCTIONS if kind != "any"]


@pytest.mark.parametrize(
    ("dtype", "columns"),
    sweeps.chessboard([F32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool], [1, 5, 16, 61, 130]),
    ids=str,
)
def test_along_rows(dtype, columns):
    kinds = kinds_for(dtype)
    made, outputs = reduction_plan(kinds, dtype, [7], [columns], lambda i, r: columns * i + r, [7])
    a = sample([7, columns], dtype)
    if dtype.is_floating_point:
        a = (a.nan_to_num(posinf=2.0, neginf=-3.0) + 2).abs().clamp(0.5, 1.5)  # products stay in range
    check(made, [a], empty(outputs), rtol=1e-5 if dtype == F32 else None, atol=1e-5 if dtype == F32 else None)


@pytest.mark.parametrize(
    ("dtype", "columns"), sweeps.chessboard([F32, torch.float64, torch.int64, torch.bool], [1, 16, 61, 130]), ids=str
)
def test_across_rows(dtype, columns):
    kinds = kinds_for(dtype)
    made, outputs = reduction_plan(kinds, dtype, [columns], [9], lambda i, r: columns * r + i, [columns])
    a = sample([9, columns], dtype)
    if dtype.is_floating_point:
        a = (a.nan_to_num(posinf=2.0, neginf=-3.0) + 2).abs().clamp(0.5, 1.5)
    check(made, [a], empty(outputs), rtol=1e-5 if dtype == F32 else None, atol=1e-5 if dtype == F32 else None)


@pytest.mark.parametrize(
    ("kinds", "size"), sweeps.chessboard([["sum"], ["max"], ["sum", "min"]], [64, 128, 200, 640, 71]), ids=str
)
def test_light_bodies_run_several_accumulators(kinds, size):
    made, outputs = reduction_plan(kinds, F32, [3], [size], lambda i, r: size * i + r, [3])
    check(made, [torch.randn(3, size)], empty(outputs), rtol=1e-5, atol=1e-5)
    made, outputs = reduction_plan(kinds, F32, [size], [6], lambda i, r: size * r + i, [size])
    check(made, [torch.randn(6, size)], empty(outputs), rtol=1e-5, atol=1e-5)


def test_two_reduction_loops_and_transposed_order():
    made, outputs = reduction_plan(
        ["sum", "argmax", "max"], F32, [4], [6, 35], lambda i, r, s: 140 * r + 4 * s + i, [4]
    )
    check(made, [torch.randn(6, 35, 4)], empty(outputs), rtol=1e-5, atol=1e-5)
    made, outputs = reduction_plan(["sum", "argmin"], F32, [4], [35, 6], lambda i, r, s: 210 * i + 35 * s + r, [4])
    check(made, [torch.randn(4, 6, 35)], empty(outputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_nan_wins_and_the_first_of_equals(kind):
    size = 50
    made, outputs = reduction_plan([kind], F32, [6], [size], lambda i, r: size * i + r, [6])
    a = torch.randn(6, size)
    a[0, 40], a[0, 13] = math.nan, math.nan
    a[1, 33:40] = 9.0
    a[2, 2::3] = -9.0
    a[3] = -math.inf
    a[4] = math.inf
    a[5, 49] = math.nan
    check(made, [a], empty(outputs))
    made, outputs = reduction_plan([kind], F32, [size], [6], lambda i, r: size * r + i, [size])
    check(made, [a], empty(outputs))


@pytest.mark.parametrize("count", [1, 10, 100_003, 1 << 20])
def test_sum_of_everything_is_accurate_and_the_same_for_any_thread_count(count):
    made, outputs = reduction_plan(["sum"], F32, [], [count], lambda r: r, [])
    a = torch.rand(count)
    exact = a.double().sum().item()
    results = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            run, _ = compile_plan(made)
            out = torch.zeros(())
            run([a, out])
        finally:
            torch.set_num_threads(before)
        results.append(out.item())
    assert results[0] == results[1]
    assert abs(results[0] - exact) <= 1e-6 * exact


def test_long_sums_keep_their_precision():
    """Ones and a tiny slope: a plain float loop is wrong in the third digit."""
    rows = 1 << 17
    a = torch.full((rows, 20), 0.1)
    exact = a.double().sum(0)
    made, outputs = reduction_plan(["sum"], F32, [20], [rows], lambda i, r: 20 * r + i, [20])
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        out = torch.zeros(20)
        run([a, out])
        assert bool(((out - exact).abs() <= 1e-6 * exact).all())
    made, outputs = reduction_plan(["sum"], F32, [20], [rows], lambda i, r: rows * i + r, [20])
    run, _ = compile_plan(made)
    out = torch.zeros(20)
    run([a.t().contiguous(), out])
    assert bool(((out - exact).abs() <= 1e-6 * exact).all())


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin", "prod"])
def test_reduction_of_everything_in_pieces(kind):
    made, outputs = reduction_plan([kind], torch.float64, [], [3, 40_009], lambda r, s: 40_009 * r + s, [])
    a = torch.rand(3, 40_009, dtype=torch.float64) * 2e-4 + 0.9999
    a[1, 77] = a[2, 5] = 1.5
    a[0, 9] = a[2, 6] = 0.5
    text = check(made, [a], empty(outputs), rtol=1e-9, atol=0)
    assert "piece" in text
    a[1, 300] = math.nan
    if kind != "prod":
        check(made, [a], empty(outputs), rtol=1e-9, atol=0)


def test_empty_reductions():
    n = Sym("s0", 0)

    def record(o, i, r):
        x = o.load("a", n * i + r, F32)
        for kind in ("sum", "prod", "max", "min", "argmax"):
            o.store(f"c_{kind}", i, o.reduction(kind, x))

    outputs = [
        buffer(f"c_{k}", torch.int64 if k == "argmax" else F32, [3]) for k in ("sum", "prod", "max", "min", "argmax")
    ]
    made = plan([body([3], record, [n])], [buffer("a", F32, [3, n])], outputs, symbols=["s0"])
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        found = empty(outputs)
        run([torch.empty(0), *found], [0])
        assert [t[0].item() for t in found] == [0.0, 1.0, -math.inf, math.inf, 0]


@pytest.mark.parametrize(("rows", "columns"), sweeps.chessboard([1, 5, 700], [7, 96, 128, 1000]), ids=str)
def test_softmax_in_stages(rows, columns):
    outer = [(Var("x0"), as_expr(rows))]
    zero = as_expr(0)

    def maximum(o, x, r):
        o.store("m", zero, o.reduction("max", o.load("a", columns * x + r, F32)))

    def exponent(o, x, r):  # a producer fused into the reduction: it stores inside the reduction's loop
        e = o.exp(o.sub(o.load("a", columns * x + r, F32), o.load("m", zero, F32)))
        o.store("e", r, e)
        o.store("s", zero, o.reduction("sum", e))

    def divide(o, x, y):
        o.store("c", columns * x + y, o.truediv(o.load("e", y, F32), o.load("s", zero, F32)))

    made = plan(
        [body([], maximum, [columns], outer), body([], exponent, [columns], outer), body([columns], divide, (), outer)],
        [buffer("a", F32, [rows, columns])],
        [buffer("c", F32, [rows, columns])],
        outer=outer,
        scratch=[buffer("e", F32, [columns])],
        registers=[buffer("m", F32, []), buffer("s", F32, [])],
    )
    a = torch.randn(rows, columns)
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        c = torch.empty(rows, columns)
        run([a, c])
        torch.testing.assert_close(c, a.softmax(-1), rtol=2e-6, atol=1e-8)


def test_large_scratch_is_not_on_the_stack():
    columns = 200_000
    outer = [(Var("x0"), as_expr(4))]

    def first(o, x, y):
        o.store("e", y, o.exp(o.load("a", columns * x + y, F32)))

    def second(o, x, y):
        o.store("c", columns * x + y, o.load("e", columns - 1 - y, F32))

    made = plan(
        [body([columns], first, (), outer), body([columns], second, (), outer)],
        [buffer("a", F32, [4, columns])],
        [buffer("c", F32, [4, columns])],
        outer=outer,
        scratch=[buffer("e", F32, [columns])],
    )
    run, text = compile_plan(made)
    assert "workspace<" in text
    a, c = torch.randn(4, columns), torch.empty(4, columns)
    run([a, c])
    torch.testing.assert_close(c, a.exp().flip(-1))


def test_lanes_along_the_shared_loop():
    """Mean and deviation over a strided dimension: only the outer loop is contiguous."""
    rows, depth = 50, 12
    outer = [(Var("x0"), as_expr(3)), (Var("x1"), as_expr(rows))]
    zero = as_expr(0)

    def at(x, y, r):
        return rows * depth * x + rows * r + y

    def mean(o, x, y, r):
        total = o.reduction("sum", o.load("a", at(x, y, r), F32))
        o.store("m", zero, o.truediv(total, o.const(float(depth))))

    def spread(o, x, y, r):
        d = o.sub(o.load("a", at(x, y, r), F32), o.load("m", zero, F32))
        o.store("v", rows * x + y, o.reduction("sum", o.mul(d, d)))

    made = plan(
        [body([], mean, [depth], outer), body([], spread, [depth], outer)],
        [buffer("a", F32, [3, depth, rows])],
        [buffer("v", F32, [3, rows])],
        outer=outer,
        registers=[buffer("m", F32, [])],
    )
    text = check(made, [torch.randn(3, depth, rows)], [torch.empty(3, rows)], rtol=1e-5, atol=1e-5)
    assert "x16 m;" in text or "x8 m;" in text or "x4 m;" in text


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int16, torch.int8])
def test_conditions_carried_between_stages_are_bytes_whatever_their_operands_were(dtype):
    rows, depth = 18, 4
    outer, zero = [(Var("x0"), as_expr(rows))], as_expr(0)

    def compare(o, x, r):
        total = o.reduction("sum", o.load("a", rows * r + x, dtype))
        o.store("m", zero, o.lt(o.load("a", x, dtype), total))

    def choose(o, x, y):
        kept = o.load("a", rows * y + x, dtype)
        o.store("c", rows * y + x, o.where(o.load("m", zero, torch.bool), kept, o.const(0, dtype)))

    two = plan(
        [body([], compare, [depth], outer), body([depth], choose, (), outer)],
        [buffer("a", dtype, [depth, rows])],
        [buffer("c", dtype, [depth, rows])],
        outer=outer,
        registers=[buffer("m", torch.bool, [])],
    )
    a, c = torch.randint(-4, 5, (depth, rows)).to(dtype), torch.empty(depth, rows, dtype=dtype)
    run, text = compile_plan(two)
    run([a, c])
    assert re.search(r"i8x\d+ m;", text)
    assert torch.equal(c, torch.where(a[:1] < a.sum(0, dtype=dtype), a, 0))


def test_parallel_loops_and_thread_options():
    n = 1 << 16

    def record(o, i):
        o.store("c", i, o.exp(o.load("a", i, F32)))

    made = plan([body([n], record)], [buffer("a", F32, [n])], [buffer("c", F32, [n])])
    a, c = torch.randn(n), torch.empty(n)
    for options, expected in (({}, "#pragma omp"), ({"threads": 2}, "num_threads(2)")):
        run, text = compile_plan(made, **options)
        assert expected in text
        run([a, c])
        torch.testing.assert_close(c, a.exp())
    assert "#pragma omp" not in compile_plan(made, threads=1)[1]
    assert "#pragma omp" not in compile_plan(made, min_parallel_work=1 << 30)[1]


def test_sum_of_a_half_is_rounded_once():
    def record(o, i, r):
        x = o.to_dtype(o.load("a", 300 * i + r, torch.bfloat16), F32)
        o.store("c", i, o.to_dtype(o.reduction("sum", x), torch.bfloat16))

    made = plan([body([5], record, [300])], [buffer("a", torch.bfloat16, [5, 300])], [buffer("c", torch.bfloat16, [5])])
    a = torch.randn(5, 300).to(torch.bfloat16)
    check(made, [a], [torch.empty(5, dtype=torch.bfloat16)], rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [None, True])
def test_whole_numbers_are_added_up_to_the_last_bit(dynamic):
    """Of 64 bits and wrapping around, however many pieces and lanes add them up."""

    def summed(tensors):
        totals = [total for x in tensors for total in (x.sum(), x.sum(-1), (x * 3).sum(0), x.cumsum(-1), x.prod())]
        return [*totals, *[x.count_nonzero() for x in tensors]]

    near = torch.tensor([2**62 + 1, 2**63 - 1, -(2**63) + 1, 3, -7, 2**53 + 1])
    given = [near[torch.arange(n) % 6].reshape(shape) for n, shape in ((8, 8), (31, 31), (70000, (7, 10000)))]
    compiled = argand.compile(summed, fullgraph=True, dynamic=dynamic)
    for got, want in zip(compiled(given), summed(given), strict=True):
        assert torch.equal(got, want)
