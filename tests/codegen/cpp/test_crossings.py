"""Divided indices: lanes on both sides of a multiple of the divisor are read as two rows of neighbours."""

from __future__ import annotations

import pytest
import torch
from cpp_kernels import body, buffer, compile_plan, plan
from test_isas import RUNNABLE

import argand
from argand.codegen.cpp.crossings import crossing
from argand.graph.sizes.expr import Var, evaluate
from argand.runtime import toolchain
from sweeps import combinations

F32 = torch.float32
V, Y = Var("v"), Var("y")
LANES = 16
INDICES = {
    "view of a padded matrix": (V + 64) % 129 + 128 * ((V + 64) // 129) + 8192 * Y - 1,
    "numerators that are apart by multiples": (V + Y + 1) % 64 + 64 * ((V + 129 * Y + 1) // 64),
    "columns": 7 * ((V + Y) % 20) + 3 * ((V + Y) // 20) + 2 * V,
    "quotient alone": 5 * ((V + 3) // 16) + Y,
    "remainder alone": (V + Y) % 16,
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_lines_are_the_index(index):
    lines = crossing(index, V, LANES, "")
    for start in range(300):
        env = {"y": start % 7}
        quotient, rest = divmod(evaluate(lines.numerator, {**env, "v": start}), int(lines.divisor))
        env |= {"v": start, "quotient": quotient, "rest": rest}
        before, after = (evaluate(line, env) for line in (lines.before, lines.after))
        for lane in range(LANES):
            line = before if lane < int(lines.divisor) - rest else after
            assert line + lane * lines.step == evaluate(index, {**env, "v": start + lane})


@pytest.mark.parametrize(
    "index",
    [
        V + 3 * Y,
        (V + 1) % 8,
        (2 * V + 1) % 65,
        V % 20 + V // 30,
        V % 20 + (V + 1) // 20,
        V * (V % 20),
        (V % 40) % 20 + Y % V,
    ],
    ids=str,
)
def test_other_indices_have_no_two_lines(index):
    assert crossing(index, V, LANES, "") is None


@pytest.mark.parametrize(
    "isa, dtype",
    combinations(RUNNABLE, [F32, torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.int32, torch.int8]),
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_rows_that_are_shorter_than_their_distance(isa, dtype):
    rows, short, apart, begin = 9, 101, 107, 5

    def record(o, i):
        at = i + begin
        o.store("c", i, o.load("a", at % short + apart * (at // short), dtype))

    n = rows * short - begin
    made = plan([body([n], record)], [buffer("a", dtype, [rows * apart])], [buffer("c", dtype, [n])])
    run, text = compile_plan(made, isa=isa)
    a = (torch.randn(rows * apart) * 50).to(dtype)
    c = torch.empty(n, dtype=dtype)
    run([a, c])
    assert torch.equal(c, a.view(rows, apart)[:, :short].reshape(-1)[begin:])
    assert "load_across" in text and "gather" not in text


def test_short_rows_are_read_by_shorter_vectors():
    def record(o, i):
        o.store("c", i, o.load("a", i % 9 + 11 * (i // 9), F32))

    made = plan([body([900], record)], [buffer("a", F32, [1100])], [buffer("c", F32, [900])])
    run, text = compile_plan(made)
    a, c = torch.randn(1100), torch.empty(900)
    run([a, c])
    assert torch.equal(c, a.view(100, 11)[:, :9].reshape(-1))
    assert "gather" not in text or toolchain.cpu_isa().vector_bytes < 32


def shifted(x, y):
    """Scores by relative position, as in Transformer-XL."""
    b, t, k = x.shape
    return torch.nn.functional.pad(x, (1, 0)).view(b, k + 1, t)[:, 1:].reshape(b, t, k) + y


def test_rows_whose_length_varies():
    compiled = argand.compile(shifted, dynamic=True, fullgraph=True)
    for size in ((2, 17, 33), (2, 40, 90), (2, 5, 7), (2, 3, 15)):
        x, y = torch.randn(size), torch.randn(size)
        assert torch.equal(compiled(x, y), shifted(x, y))


@pytest.mark.parametrize("size, dtype", combinations([(2, 17, 33), (3, 40, 9), (1, 64, 128)], [F32, torch.float16]))
def test_relative_shift_and_its_gradient(size, dtype):
    x, y = (torch.randn(size).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(size).to(dtype)
    want, got = shifted(x, y), argand.compile(shifted, fullgraph=True)(x, y)
    assert torch.equal(want, got)
    for a, b in zip(torch.autograd.grad(want, (x, y), weight), torch.autograd.grad(got, (x, y), weight)):
        assert torch.equal(a, b)
