"""Pointwise kernels: every op and dtype, tails, strides, masks, conversions; vector and scalar code agree with the reference."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cpp_kernels import body, buffer, check, compile_plan, plan, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import argand
import sweeps
from argand.graph.sizes.expr import Sym
from argand.ir.operations import BINARY, COMPARISONS, PREDICATES, SPECIAL_FUNCTIONS, UNARY
from argand.runtime import toolchain

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
ALL = (*FLOATS, torch.bfloat16, torch.float16, *INTEGERS, torch.bool)
LOGICAL = ("logical_and", "logical_or", "logical_xor", "logical_not")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
FLOAT_ONLY = frozenset(
    "floor ceil round trunc reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc sigmoid truediv pow atan2 copysign isnan isinf isfinite".split()
)
DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod", "lshift", "rshift")


def ops_for(dtype, names):
    for op in names:
        if dtype == torch.bool:
            if op in LOGICAL or op in COMPARISONS:
                yield op
        elif op in LOGICAL or (op in SPECIAL_FUNCTIONS and dtype != torch.float32):
            continue
        elif dtype.is_floating_point:
            if op not in BITWISE and op not in DIVISIONS or op == "fmod":
                yield op
        elif op not in FLOAT_ONLY:
            yield op


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_unary(dtype):
    ops = [op for op in ops_for(dtype, (*UNARY, *PREDICATES)) if dtype.is_floating_point or op not in PREDICATES[:3]]
    results = {op: torch.bool if op in PREDICATES else dtype for op in ops}
    n = 77

    def record(o, i):
        for op in ops:
            o.store(f"c_{op}", i, o.emit(op, (o.load("a", i, dtype),), results[op]))

    outputs = [buffer(f"c_{op}", results[op], [n]) for op in ops]
    made = plan([body([n], record)], [buffer("a", dtype, [n])], outputs)
    check(made, [sample([n], dtype)], [torch.empty(n, dtype=results[op]) for op in ops])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_binary(dtype):
    ops = list(ops_for(dtype, (*BINARY, *COMPARISONS)))
    results = {op: torch.bool if op in COMPARISONS else dtype for op in ops}
    n = 70

    def record(o, i):
        for op in ops:
            whole = op in DIVISIONS and not dtype.is_floating_point
            b = o.const(3, dtype) if whole else o.load("b", i, dtype)
            o.store(f"c_{op}", i, o.emit(op, (o.load("a", i, dtype), b), results[op]))

    outputs = [buffer(f"c_{op}", results[op], [n]) for op in ops]
    made = plan([body([n], record)], [buffer("a", dtype, [n]), buffer("b", dtype, [n])], outputs)
    tensors = [sample([n], dtype), sample([n], dtype, seed=1)]
    check(made, tensors, [torch.empty(n, dtype=results[op]) for op in ops])


@pytest.mark.parametrize("have", ALL)
def test_conversion(have):
    n = 41
    a = sample([n], have)
    if have.is_floating_point:
        a = (torch.nan_to_num(a.float(), posinf=5.0, neginf=3.0).clamp(0, 100) * 7).to(have)

    def record(o, i):
        for k, want in enumerate(ALL):
            o.store(f"c{k}", i, o.to_dtype(o.load("a", i, have), want))

    outputs = [buffer(f"c{k}", want, [n]) for k, want in enumerate(ALL)]
    made = plan([body([n], record)], [buffer("a", have, [n])], outputs)
    check(made, [a], [torch.empty(n, dtype=want) for want in ALL], modes=(-1, 0, 256), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_conversion_of_every_value(dtype):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    n = len(every)

    def record(o, i):
        x = o.to_dtype(o.load("a", i, dtype), torch.float32)
        o.store("c", i, x)
        o.store("d", i, o.to_dtype(o.mul(x, o.const(1.00390625 - 2**-12)), dtype))

    made = plan(
        [body([n], record)], [buffer("a", dtype, [n])], [buffer("c", torch.float32, [n]), buffer("d", dtype, [n])]
    )
    check(made, [every], [torch.empty(n), torch.empty(n, dtype=dtype)], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("want", "have"),
    sweeps.chessboard([torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], FLOATS),
    ids=str,
)
def test_float_to_integer_out_of_range_is_as_eager(have, want):
    a = torch.tensor([-1.9, 300.7, -200.2, 65536.5, 1e6, -1e6, 2.0**30], dtype=have).repeat(5)

    def record(o, i):
        o.store("c", i, o.to_dtype(o.load("a", i, have), want))

    made = plan([body([35], record)], [buffer("a", have, [35])], [buffer("c", want, [35])])
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        c = torch.empty(35, dtype=want)
        run([a, c])
        assert torch.equal(c, a.to(want))


@pytest.mark.parametrize("size", [1, 2, 7, 3, 16, 8, 17, 15, 33, 31, 100, 64][:: 1 if sweeps.WHOLE else 2])
def test_every_tail(size):
    def record(o, i, j):
        x = o.add(o.load("a", size * i + j, torch.float32), o.load("b", j, torch.float32))
        o.store("c", size * i + j, o.exp(o.mul(x, o.load("s", i, torch.float32))))

    made = plan(
        [body([5, size], record)],
        [buffer("a", torch.float32, [5, size]), buffer("b", torch.float32, [size]), buffer("s", torch.float32, [5])],
        [buffer("c", torch.float32, [5, size])],
    )
    guarded = torch.full((5 * size + 64,), 7.0)
    check(made, [torch.randn(5, size), torch.randn(size), torch.randn(5)], [torch.empty(5, size)])
    run, _ = compile_plan(made)
    run([torch.randn(5, size), torch.randn(size), torch.randn(5), guarded])
    assert bool((guarded[5 * size :] == 7.0).all()), "wrote beyond the end"


def test_symbolic_sizes():
    rows, columns = Sym("s0"), Sym("s1")

    def record(o, i, j):
        o.store("c", columns * i + j, o.add(o.load("a", columns * i + j, torch.float32), o.load("b", i, torch.float32)))

    made = plan(
        [body([rows, columns], record)],
        [buffer("a", torch.float32, [rows, columns]), buffer("b", torch.float32, [rows])],
        [buffer("c", torch.float32, [rows, columns])],
        symbols=["s0", "s1"],
    )
    run, text = compile_plan(made)
    assert "const i64 s0 = ints[0];" in text
    for r, c in ((1, 1), (3, 16), (4, 37), (700, 130), (0, 5), (5, 0)):
        a, b, out = torch.randn(r, c), torch.randn(r), torch.empty(r, c)
        run([a, b, out], [r, c])
        assert torch.equal(out, a + b[:, None])


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
SHAPES = [(48, 64), (37, 70), (5, 100), (100, 5)]


@pytest.mark.parametrize(("dtype", "shape"), sweeps.diagonal(DTYPES, SHAPES), ids=str)
def test_transposed_load(dtype, shape):
    rows, columns = shape

    def record(o, i, j):
        o.store("c", columns * i + j, o.load("a", i + rows * j, dtype))

    made = plan([body([rows, columns], record)], [buffer("a", dtype, [columns, rows])], [buffer("c", dtype, shape)])
    check(made, [sample([columns, rows], dtype)], [torch.empty(shape, dtype=dtype)], rtol=0, atol=0)


def test_transposed_and_straight_loads_together():
    def record(o, b, i, j):
        x = o.add(o.load("a", 6400 * b + 80 * j + i, torch.float32), o.load("d", 80 * i + j, torch.float32))
        o.store("c", 6400 * b + 80 * i + j, o.mul(x, o.load("s", i, torch.float32)))

    made = plan(
        [body([2, 80, 80], record)],
        [
            buffer("a", torch.float32, [2, 80, 80]),
            buffer("d", torch.float32, [80, 80]),
            buffer("s", torch.float32, [80]),
        ],
        [buffer("c", torch.float32, [2, 80, 80])],
    )
    text = check(made, [torch.randn(2, 80, 80), torch.randn(80, 80), torch.randn(80)], [torch.empty(2, 80, 80)])
    assert "transpose(" in text


@pytest.mark.parametrize(("dtype", "shape"), sweeps.diagonal(DTYPES, SHAPES[::-1]), ids=str)
def test_one_store_in_order_and_one_transposed(dtype, shape):
    rows, columns = shape

    def record(o, i, j):
        x = o.load("a", columns * i + j, dtype)
        o.store("c", columns * i + j, x)
        o.store("d", i + rows * j, x)

    made = plan(
        [body([rows, columns], record)],
        [buffer("a", dtype, shape)],
        [buffer("c", dtype, shape), buffer("d", dtype, [columns, rows])],
    )
    inputs = [sample([rows, columns], dtype)]
    outs = [torch.empty(shape, dtype=dtype), torch.empty(columns, rows, dtype=dtype)]
    text = check(made, inputs, outs, rtol=0, atol=0)
    assert "transpose(" in text or min(shape) < 8
    run, _ = compile_plan(made)
    guarded = torch.ones(rows * columns + 64, dtype=dtype)
    run([*inputs, outs[0], guarded])
    assert bool((guarded[rows * columns :] == 1).all()), "wrote beyond the end"


def test_a_transposed_store_is_not_read_in_its_stage():
    def record(o, i, j):
        x = o.load("a", 64 * i + j, torch.float32)
        o.store("c", 64 * i + j, o.add(x, o.load("d", i + 48 * j, torch.float32)))
        o.store("d", i + 48 * j, x)

    made = plan(
        [body([48, 64], record)],
        [buffer("a", torch.float32, [48, 64])],
        [buffer("c", torch.float32, [48, 64]), buffer("d", torch.float32, [64, 48])],
    )
    run, _ = compile_plan(made)
    a, c, d = torch.randn(48, 64), torch.empty(48, 64), torch.randn(64, 48)
    want = a + d.T
    run([a, c, d])
    assert torch.equal(c, want) and torch.equal(d, a.T)


def test_strided_load_and_store():
    def record(o, i):
        o.store("c", 3 * i, o.load("a", 2 * i + 1, torch.float32))

    made = plan([body([50], record)], [buffer("a", torch.float32, [101])], [buffer("c", torch.float32, [150])])
    check(made, [torch.randn(101)], [torch.full((150,), 2.0)])


def test_division_in_an_index():
    def record(o, i):
        o.store("c", i, o.add(o.load("a", i // 64, torch.float32), o.load("b", (i // 3) % 5, torch.float32)))
        o.store("d", i, o.load("b", i % 64, torch.float32))

    made = plan(
        [body([256], record)],
        [buffer("a", torch.float32, [4]), buffer("b", torch.float32, [64])],
        [buffer("c", torch.float32, [256]), buffer("d", torch.float32, [256])],
    )
    check(made, [torch.randn(4), torch.randn(64)], [torch.empty(256), torch.empty(256)])


def test_masked_by_lane_and_by_row():
    def record(o, i, j):
        inside = o.logical_and(
            o.ge(o.index_expr(j - 1, torch.int64), o.const(0, torch.int64)),
            o.lt(o.index_expr(j - 1, torch.int64), o.const(20, torch.int64)),
        )
        row = o.logical_and(inside, o.lt(o.index_expr(i, torch.int64), o.const(3, torch.int64)))
        x = o.masked(row, lambda: o.load("a", 20 * i + j - 1, torch.float32), math.inf)
        o.store("c", 22 * i + j, x)
        y = o.masked(inside, lambda: o.load("m", j - 1, torch.bool), True)
        o.store("d", 22 * i + j, o.logical_not(y))

    made = plan(
        [body([5, 22], record)],
        [buffer("a", torch.float32, [3, 20]), buffer("m", torch.bool, [20])],
        [buffer("c", torch.float32, [5, 22]), buffer("d", torch.bool, [5, 22])],
    )
    check(
        made,
        [sample([3, 20], torch.float32), sample([20], torch.bool)],
        [torch.empty(5, 22), torch.zeros(5, 22).bool()],
    )


def test_masked_does_not_touch_memory_outside():
    """The buffer ends at a page that must not be read."""
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
    data = torch.frombuffer(area, dtype=torch.float32, count=page // 4)[-10:]
    data.copy_(torch.arange(10.0))

    def record(o, j):
        inside = o.lt(o.index_expr(j, torch.int64), o.const(10, torch.int64))
        o.store("c", j, o.masked(inside, lambda: o.load("a", j, torch.float32), -1.0))

    made = plan([body([40], record)], [buffer("a", torch.float32, [10])], [buffer("c", torch.float32, [40])])
    for simdlen in (-1, 0, 128, 256):
        run, _ = compile_plan(made, simdlen)
        c = torch.empty(40)
        run([data, c])
        assert torch.equal(c, torch.cat([torch.arange(10.0), -torch.ones(30)]))


def test_where_constants_and_index_values():
    def record(o, i, j):
        below = o.le(o.index_expr(j, torch.int64), o.index_expr(i, torch.int64))
        o.store("c", 40 * i + j, o.where(below, o.load("a", 40 * i + j, torch.float32), o.const(-math.inf)))
        o.store("d", 40 * i + j, o.to_dtype(o.index_expr(3 * j + i, torch.int64), torch.float32))
        o.store("e", 40 * i + j, o.add(o.index_expr(3 * j - i, torch.int64), o.const(1 << 40, torch.int64)))

    made = plan(
        [body([40, 40], record)],
        [buffer("a", torch.float32, [40, 40])],
        [
            buffer("c", torch.float32, [40, 40]),
            buffer("d", torch.float32, [40, 40]),
            buffer("e", torch.int64, [40, 40]),
        ],
    )
    check(
        made, [torch.randn(40, 40)], [torch.empty(40, 40), torch.empty(40, 40), torch.empty(40, 40, dtype=torch.int64)]
    )


@pytest.mark.parametrize("threads", [1, -1])
@pytest.mark.parametrize("shape", [(1, 70_000), (40, 2048), (40, 2047)])
def test_results_larger_than_the_cache_are_streamed(shape, threads):
    """Stores past the caches need aligned memory: an unaligned result and odd rows must be right too."""
    rows, columns = shape

    def record(o, i, j):
        o.store("c", columns * i + j, o.mul(o.load("a", columns * i + j, torch.float32), o.const(2.0)))

    made = plan(
        [body([rows, columns], record)],
        [buffer("a", torch.float32, shape)],
        [buffer("c", torch.float32, shape)],
    )
    isa = replace(toolchain.cpu_isa(), cache_bytes=4096)
    run, text = compile_plan(made, isa=isa, threads=threads)
    if isa.vector_bytes == 64:
        assert ("store_stream(" in text) == (columns % 16 == 0 or rows == 1)
        assert ("end_stream();" in text) == ("store_stream(" in text)
    a = torch.randn(shape)
    for offset in (0, 1):
        memory = torch.zeros(rows * columns + 1)
        run([a, memory[offset:]])
        assert torch.equal(memory[offset : offset + rows * columns].reshape(shape), a * 2)


def test_integers_wrap_around():
    for dtype in INTEGERS:
        info = torch.iinfo(dtype)
        a = torch.tensor([info.min, info.max, 3, info.max // 2 + 1], dtype=dtype).repeat(10)

        def record(o, i):
            x = o.load("a", i, dtype)
            o.store("c", i, o.add(o.mul(x, x), o.neg(x)))
            o.store("d", i, o.abs(o.sub(x, o.const(2, dtype))))

        made = plan(
            [body([40], record)], [buffer("a", dtype, [40])], [buffer("c", dtype, [40]), buffer("d", dtype, [40])]
        )
        check(made, [a], [torch.empty(40, dtype=dtype), torch.empty(40, dtype=dtype)])


# --- random expressions: the vector code must give the scalar code's bits


@st.composite
def expressions(draw, depth=4):
    """A function of (ops, leaf loader) that records a random float32 expression."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        which = draw(st.sampled_from(["a", "b", "s", "constant"]))
        number = draw(st.floats(-4, 4, width=32))
        return lambda o, leaf: o.const(number) if which == "constant" else leaf(which)
    kind = draw(st.sampled_from(["unary", "binary", "where", "integer", "half"]))
    x, y = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if kind == "unary":
        op = draw(
            st.sampled_from("neg abs sign floor sqrt exp log tanh erf sigmoid sin expm1 log1p rsqrt round".split())
        )
        return lambda o, leaf: o.unary(op, x(o, leaf))
    if kind == "binary":
        op = draw(st.sampled_from("add sub mul truediv maximum minimum copysign".split()))
        return lambda o, leaf: o.binary(op, x(o, leaf), y(o, leaf))
    if kind == "where":
        op = draw(st.sampled_from(COMPARISONS))
        return lambda o, leaf: o.where(o.compare(op, x(o, leaf), y(o, leaf)), x(o, leaf), o.const(0.5))
    if kind == "half":
        dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float64]))
        return lambda o, leaf: o.to_dtype(o.to_dtype(x(o, leaf), dtype), torch.float32)
    integer = draw(st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]))

    def record(o, leaf):
        small = o.minimum(o.maximum(x(o, leaf), o.const(-100.0)), o.const(100.0))
        finite = o.where(o.isnan(small), o.const(1.0), small)
        return o.to_dtype(o.add(o.to_dtype(finite, integer), o.const(5, integer)), torch.float32)

    return record


@settings(max_examples=sweeps.part(15), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(expressions(), min_size=6, max_size=6), st.sampled_from([16, 19, 40]))
def test_random_expressions_are_the_same_in_vector_and_scalar_code(functions, n):
    def record(o, i, j):
        def leaf(name):
            return o.load(name, {"a": n * i + j, "b": j, "s": i}[name], torch.float32)

        for k, function in enumerate(functions):
            o.store(f"c{k}", n * i + j, function(o, leaf))

    outputs = [buffer(f"c{k}", torch.float32, [3, n]) for k in range(len(functions))]
    inputs = [buffer("a", torch.float32, [3, n]), buffer("b", torch.float32, [n]), buffer("s", torch.float32, [3])]
    made = plan([body([3, n], record)], inputs, outputs)
    tensors = [sample([3, n], torch.float32), sample([n], torch.float32, 1), sample([3], torch.float32, 2)]
    results = []
    for simdlen in (-1, 0):
        run, _ = compile_plan(made, simdlen)
        found = [torch.empty(3, n) for _ in functions]
        run([*tensors, *found])
        results.append(found)
    for vector, scalar in zip(*results):
        assert torch.equal(torch.isnan(vector), torch.isnan(scalar))
        same = torch.isnan(vector) | (vector.view(torch.int32) == scalar.view(torch.int32))
        assert bool(same.all())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_divisors_at_the_ends_of_a_dtype(dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    divisions = {"floordiv": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod}

    def program(x):
        return [op(x, number) for op in divisions.values() for number in (low, low + 1, high)]

    x = torch.tensor([0, 1, -1, 7, high, low, low + 1] * 3, dtype=dtype)
    assert all(map(torch.equal, program(x), argand.compile(program)(x)))


def test_integers_divided_by_integers_of_another_type():
    """Those of 32 bits that are computed as 64 may stay in 32 until they divide."""
    whole = {dtype: torch.arange(2, 21).to(dtype) for dtype in INTEGERS}

    def divided(whole):
        ops = (torch.remainder, torch.fmod, torch.floor_divide)
        return [op(a, b) for a in whole.values() for b in whole.values() if a.dtype is not b.dtype for op in ops]

    for got, want in zip(argand.compile(divided, fullgraph=True)(whole), divided(whole), strict=True):
        assert got.dtype is want.dtype and torch.equal(got, want)
