"""How far positions reach, in terms of sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "schedule"))
from loop_programs import Builder, softmax  # noqa: E402

from argand.codegen.triton import generate  # noqa: E402
from argand.codegen.triton.index_width import NARROW, reach_of  # noqa: E402
from argand.graph.sizes.expr import Sym, Var, evaluate  # noqa: E402
from argand.ir.target import gpu  # noqa: E402
from argand.lower.recorder import Recorder  # noqa: E402
from argand.runtime.gpu.kernels import variants  # noqa: E402
from argand.schedule.pipeline import schedule  # noqa: E402

S0, S1 = Sym("s0"), Sym("s1")


def plans(b, *outputs):
    return schedule(b.program(*outputs), targets=lambda _: gpu(132)).kernels()


def at(plan, **sizes):
    return max(int(evaluate(term, sizes)) for term in reach_of(plan).terms)


def test_the_runtime_draws_the_same_line():
    assert variants.NARROW == NARROW


def test_known_sizes_have_no_variants():
    for rows, wide in ((1 << 20, False), (1 << 26, True)):
        b = Builder()
        (plan,) = plans(b, b.pointwise(lambda o, v: o.mul(v, v), b.input(rows, 64)))
        reach = reach_of(plan)
        assert (reach.terms, reach.wide, reach.varies) == ((), wide, False)
        assert ("tl.int64" in generate([plan], 132).text) is wide


@pytest.mark.parametrize("columns", [S1, 96])
def test_rows_and_columns_of_any_size(columns):
    b = Builder()
    (plan,) = plans(b, softmax(b, b.input(S0, columns)))
    reach = reach_of(plan)
    assert reach.varies and reach.sizes >= {"s0"}
    for s0, s1 in ((3, 96), (1000, 96), (1 << 24, 96)):
        elements = s0 * 96
        assert elements <= at(plan, s0=s0, s1=s1) <= 2 * elements + 4 * 96
    source = generate([plan], 132)
    spec = source.specs[plan.name]
    assert [spec.signature[place] for place, _ in spec.sizes] == ["i64"] * len(spec.sizes)
    assert dict(spec.constants)["WIDE"] == 1 and spec.reach == reach.terms and "POSITION" in source.text


@pytest.mark.parametrize("varies", [True, False])
def test_numbers_that_are_no_sizes_make_positions_wide_unless_they_are_values(varies):
    z = Var("z0")
    b = Builder()
    x, out = b.input(100), b.buffer([S0])
    ops = Recorder({z: S0})
    n = ops.index_expr(Sym("n", None), torch.int64)
    loaded = ops.load(x.buffer, z * (S0 if varies else Sym("n", None)), torch.float32)
    ops.store(out.buffer, z, ops.add(loaded, ops.to_dtype(n, torch.float32)))
    b._node(ops, [z], [S0], (), (), out, "odd")
    (plan,) = plans(b, out)
    reach = reach_of(plan)
    assert reach.varies is varies and reach.wide is not varies and "n" not in reach.sizes


def test_what_is_added_to_a_position_counts():
    b = Builder()
    z = Var("z0")
    ops, x, out = Recorder({z: S0}), b.input(S0), b.buffer([S0])
    value = ops.index_expr(z + NARROW, torch.int64)
    ops.store(out.buffer, z, ops.add(ops.load(x.buffer, z, torch.float32), ops.to_dtype(value, torch.float32)))
    b._node(ops, [z], [S0], (), (), out, "far")
    (plan,) = plans(b, out)
    assert at(plan, s0=1) > NARROW
