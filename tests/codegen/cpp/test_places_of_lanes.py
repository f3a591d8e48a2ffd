"""Vectors whose lanes are one element, run backwards, look up places, or are few: values, bounds, and how they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpp_kernels import body, buffer, compile_plan, plan
from test_isas import RUNNABLE

import argand
from argand.codegen.analysis import analyse
from argand.codegen.cpp.plan import plan_stage
from argand.runtime import processor, toolchain
from helpers import collected
from sweeps import combinations

F32, I64 = torch.float32, torch.int64
DTYPES = [F32, torch.float64, torch.bfloat16, torch.bool, I64, torch.int32, torch.int8]


@pytest.mark.parametrize("isa, dtype", combinations(RUNNABLE, DTYPES), ids=lambda x: getattr(x, "name", str(x)))
def test_backwards_and_one_element_under_a_mask(isa, dtype):
    rows, columns = 40, 77

    def record(o, i, j):
        o.store("back", columns * i + j, o.load("a", columns * i + columns - 1 - j, dtype))
        on = o.eq(o.index_expr(i + 3, I64), o.index_expr(j, I64))
        spread = o.masked(on, lambda: o.load("d", i, dtype), 0)
        o.store("spread", columns * i + j, o.where(on, spread, o.const(0, dtype)))

    size = [rows, columns]
    outs = [buffer("back", dtype, size), buffer("spread", dtype, size)]
    run, text = compile_plan(
        plan([body(size, record)], [buffer("a", dtype, size), buffer("d", dtype, [rows])], outs), isa=isa
    )
    a, d = ((torch.randn(n) * 50).to(dtype) for n in (size, [rows]))
    back, spread = torch.empty_like(a), torch.empty_like(a)
    run([a, d, back, spread])
    assert torch.equal(back, a.flip(1))
    assert torch.equal(spread, torch.zeros(size, dtype=dtype).diagonal_scatter(d, 3))
    if isa.vector_bytes >= 32:
        assert "load_reversed<" in text and "splat_masked<" in text and "gather_masked<" not in text


@pytest.mark.parametrize("isa, dtype", combinations(RUNNABLE, DTYPES), ids=lambda x: getattr(x, "name", str(x)))
def test_every_second_element_under_a_mask(isa, dtype):
    def record(o, i, j):
        inside = o.gt(o.index_expr(j, I64), o.index_expr(i, I64))
        o.store("c", 43 * i + j, o.masked(inside, lambda: o.load("a", 86 * i + 2 * j - 2, dtype), 0))

    plans = plan([body([3, 43], record)], [buffer("a", dtype, [258])], [buffer("c", dtype, [3, 43])])
    run, text = compile_plan(plans, isa=isa)
    a, c = (torch.randn(258) * 50).to(dtype), torch.empty(3, 43, dtype=dtype)
    run([a, c])
    rows, columns = torch.arange(3)[:, None], torch.arange(43)
    wanted = a[(86 * rows + 2 * columns - 2).clamp_min(0)]
    assert torch.equal(c, torch.where(columns > rows, wanted, torch.zeros_like(wanted)))
    if isa.vector_bytes >= 32 and dtype != torch.bool:
        assert "load_pairs_masked<" in text and "gather_masked<" not in text


def test_masks_that_lanes_share_are_compiled_at_another_level():
    def shared(o, i, j):
        inside = o.lt(o.index_expr(i, I64), o.const(2, I64))
        o.store("c", 64 * i + j, o.masked(inside, lambda: o.load("a", 64 * i + j, F32), 7))

    def plain(o, i, j):
        o.store("c", 64 * i + j, o.load("a", 64 * i + j, F32))

    for record, count in ((shared, 1), (plain, 0)):
        ends = [buffer("a", F32, [3, 64])], [buffer("c", F32, [3, 64])]
        run, text = compile_plan(plan([body([3, 64], record)], *ends))
        a, c = torch.randn(3, 64), torch.empty(3, 64)
        run([a, c])
        assert torch.equal(c[:2], a[:2])
        assert text.count('optimize("O3")') == count


def test_an_index_is_checked_once_for_all_vectors_of_a_row():
    def f(x, places):
        return x[places].sum(0)

    x, places = torch.randn(20, 48), torch.randint(-20, 20, (300,))
    with collected("output_code") as seen:
        compiled = argand.compile(f, options={"cpp.simdlen": 256})
        torch.testing.assert_close(compiled(x, places), f(x, places))
    kernel = seen[-1].text().partition('extern "C"')[2]
    assert kernel.index("check_index<") < kernel.index("for (int u")  # the loop over the vectors of a row
    with pytest.raises(IndexError):
        compiled(x, places + 30)


def test_an_element_that_no_lane_wants_is_not_read():
    def record(o, i, j):
        inside = o.lt(o.index_expr(64 * i + j, I64), o.const(64, I64))
        o.store("c", 64 * i + j, o.masked(inside, lambda: o.load("a", (1 << 40) * i, F32), 7))

    run, _ = compile_plan(plan([body([3, 64], record)], [buffer("a", F32, [1])], [buffer("c", F32, [3, 64])]))
    c = torch.empty(3, 64)
    assert run([torch.ones(1), c]) == 0
    assert torch.equal(c, torch.tensor([1.0, 7.0, 7.0])[:, None].expand(3, 64))


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_every_lane_is_checked_where_it_is_wanted(isa, wrap, masked):
    columns, table = 21, 10

    def record(o, i):
        def looked_up():
            var = o.indirect_var(o.load("i", i, I64), table, wrap)
            return o.load("w", 3 * var + 1, F32)

        if masked:
            o.store("c", i, o.masked(o.load("m", i, torch.bool), looked_up, -1))
        else:
            o.store("c", i, looked_up())

    ins = [buffer("i", I64, [columns]), buffer("m", torch.bool, [columns]), buffer("w", F32, [3 * table])]
    run, _ = compile_plan(plan([body([columns], record)], ins, [buffer("c", F32, [columns])]), isa=isa)
    weight, mask = torch.randn(3 * table), torch.arange(columns) % 3 != 0
    for bad in (None, table, 1 << 33, -1, -table, -table - 1):
        for lane in range(columns) if bad is not None else (0,):
            index = torch.randint(0, table, (columns,))
            if bad is not None:
                index[lane] = bad
            c = torch.empty(columns)
            wrong = bad is not None and not (wrap and -table <= bad < table) and (not masked or bool(mask[lane]))
            assert (run([index, mask, weight, c]) != 0) == wrong, (bad, lane)
            if not wrong:
                good = torch.where(index < 0, index + table, index)
                want = weight[3 * good.clamp(0, table - 1) + 1]
                assert torch.equal(c, torch.where(mask, want, -1.0) if masked else want)


def test_short_rows_are_copied_by_short_vectors():
    """Patches of 8 x 8: tiles of 16 x 16 would be half empty, and both sides are contiguous."""

    def record(o, i, j, k, m):
        o.store("c", 1024 * i + 64 * j + 8 * k + m, o.load("a", 1024 * i + 8 * j + 128 * k + m, F32))

    part = body([384, 16, 8, 8], record)
    chosen = plan_stage(analyse(part), part.vars, 64)
    assert chosen.vector is part.vars[-1] and not chosen.transposed


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
@pytest.mark.parametrize("turned", [False, True])
def test_lanes_of_32_bits_are_compared_with_a_number_of_64(isa, turned):
    """As labels with classes, and lengths with places."""
    far = [most + step for most in (1 << 31, -(1 << 31), 1 << 32, -(1 << 32)) for step in (-2, -1, 0, 1, 3)]
    numbers = torch.tensor([0, 3, 36, 37, -1, -100, *far, (1 << 63) - 1, -(1 << 63)])
    lanes = torch.tensor(
        [*range(17), -1, -5, (1 << 31) - 1, (1 << 31) - 2, -(1 << 31), 1 - (1 << 31)], dtype=torch.int32
    )
    size = [len(numbers), len(lanes)]
    names = ("eq", "ne", "lt", "le", "gt", "ge")

    def record(o, i, j):
        pair = (o.load("y", i, I64), o.to_dtype(o.load("x", j, torch.int32), I64))
        for name in names:
            o.store(name, len(lanes) * i + j, o.binary(name, *(pair[::-1] if turned else pair)))

    ins = [buffer("y", I64, size[:1]), buffer("x", torch.int32, size[1:])]
    run, text = compile_plan(
        plan([body(size, record)], ins, [buffer(name, torch.bool, size) for name in names]), isa=isa
    )
    outs = [torch.empty(size, dtype=torch.bool) for _ in names]
    run([numbers, lanes, *outs])
    for name, out in zip(names, outs):
        pair = (numbers[:, None], lanes.long())
        assert torch.equal(out, getattr(torch, name)(*(pair[::-1] if turned else pair))), name
    assert "equal_narrow(" in text and "below_narrow(" in text


@pytest.mark.parametrize("bits", (-1, 256))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int32))
def test_neighbours_are_looked_up_by_one_load(dtype: torch.dtype, bits: int) -> None:
    """Places that follow from the loops: near each other, far, in any order, at the end of a page of memory."""
    x = torch.arange(6 * 1024).to(dtype).reshape(6, 1024)

    def fn(x: Any) -> list[Any]:
        at = torch.arange(700)
        places = (at // 3, (at * 37) % 1024, (at * 0.577).int(), 1023 - at, (at * 5 + 3) % 16, 324 + at, at * 0 + 7)
        return [x[:, place.clamp(0, 1023)] + 1 for place in places]

    with argand.config.patch({"cpp.simdlen": bits}), collected("output_code") as seen:
        got = argand.compile(fn, fullgraph=True, dynamic=False)(x)
    assert all(map(torch.equal, got, fn(x)))
    assert "gather_near<" in seen[-1].text()


@pytest.mark.parametrize("gathers", (False, True))
def test_lanes_are_looked_up_by_one_instruction_where_that_is_fast(gathers: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(processor, "gathers", lambda: gathers)
    for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.float64):
        x, at = torch.arange(300).to(dtype), torch.randint(-9, 400, (99,), dtype=torch.int32)
        fn = lambda x, at: x[at.clamp(0, 299)] + 1  # noqa: E731 (one short function for each dtype)
        assert torch.equal(argand.compile(fn, dynamic=False)(x, at), fn(x, at))
    assert ("-DGATHERS" in toolchain.compile_flags(toolchain.find_toolchain(), toolchain.cpu_isa())) == gathers
