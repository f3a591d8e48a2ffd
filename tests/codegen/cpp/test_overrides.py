"""The table of C++ expressions can be replaced: the reference's neg1, neg2, neg3 experiment; comments in the generated code."""

from __future__ import annotations

import re

import pytest
import torch
from cpp_kernels import ORIGIN, body, buffer, compile_plan, plan

from argand.codegen.cpp import CppOverrides, overrides
from argand.errors import CppCompileError
from argand.ir.loops import Origin

U8 = torch.uint8


@pytest.fixture
def restored():
    saved = dict(overrides.DEFAULTS)
    yield
    for name, value in saved.items():
        setattr(CppOverrides, name, value)


def neg_then_maximum(rows=30, columns=8):
    """The reference's example: maximum(x2, neg(x1)) on uint8."""

    def record(o, i, j):
        o.origin = ORIGIN
        n = o.neg(o.load("x1", j, U8))
        o.origin = Origin(
            "maximum", "maximum = torch.ops.aten.maximum.default(arg1_1, neg)", "model.py:8 in forward: b"
        )
        o.store("y", columns * i + j, o.maximum(o.load("x2", columns * i + j, U8), n))

    made = plan(
        [body([rows, columns], record)],
        [buffer("x1", U8, [1, columns]), buffer("x2", U8, [rows, columns])],
        [buffer("y", U8, [rows, columns])],
    )
    x1 = torch.randint(256, (1, columns), dtype=U8)
    x2 = torch.randint(256, (rows, columns), dtype=U8)
    return made, x1, x2


def run(made, x1, x2):
    call, text = compile_plan(made)
    y = torch.empty_like(x2)
    call([x1, x2, y])
    return y, text


@pytest.mark.parametrize("columns", [8, 64, 100])
def test_default_and_neg1(restored, columns):
    made, x1, x2 = neg_then_maximum(columns=columns)
    expected = torch.maximum(x2, torch.neg(x1))
    assert torch.equal(run(made, x1, x2)[0], expected)

    def neg1(x):
        return f"decltype({x})(-{x})"

    overrides.neg = neg1
    y, text = run(made, x1, x2)
    assert torch.equal(y, expected)
    assert re.search(r"auto tmp(\d+) = decltype\(tmp(\d+)\)\(-tmp\2\);", text)


@pytest.mark.parametrize("columns", [8, 64, 100])
def test_neg2_is_a_type_error_that_says_where(restored, columns):
    made, x1, x2 = neg_then_maximum(columns=columns)

    def neg2(x):
        return f"-{x}"

    overrides.neg = neg2
    with pytest.raises(CppCompileError) as caught:
        run(made, x1, x2)
    text = str(caught.value)
    assert "no matching function for call to 'maximum(" in text
    assert "FX node: maximum = torch.ops.aten.maximum.default(arg1_1, neg)" in text
    assert 'File "model.py", line 8, in forward' in text
    assert "argand.codegen.cpp.overrides" in text


def test_neg3_computes_something_else(restored):
    made, x1, x2 = neg_then_maximum()
    CppOverrides.neg = staticmethod(lambda x: f"decltype({x})(2 * {x})")
    assert torch.equal(run(made, x1, x2)[0], torch.maximum(x2, 2 * x1))
    assert overrides.replaced("neg")


def test_restoring_the_default_restores_vector_code(restored):
    made, x1, x2 = neg_then_maximum(columns=64)
    before = run(made, x1, x2)[1]
    original = overrides.neg
    overrides.neg = lambda x: f"decltype({x})(-{x})"
    assert "load<" not in run(made, x1, x2)[1]
    overrides.neg = original
    assert run(made, x1, x2)[1] == before
    assert "load<" in before


def test_every_statement_says_where_it_came_from():
    made, _, _ = neg_then_maximum(columns=64)
    text = compile_plan(made)[1]
    lines = text.splitlines()
    where = next(k for k, line in enumerate(lines) if "decltype" in line and "tmp" in line)
    above = "\n".join(lines[:where])
    assert "// neg = torch.ops.aten.neg.default(arg0_1)  <- model.py:7 in forward: y = -x" in above
    assert "// maximum = torch.ops.aten.maximum.default(arg1_1, neg)  <- model.py:8 in forward: b" in text
    assert "#include" not in text


def test_comments_cannot_break_out_of_their_line():
    def record(o, i):
        o.origin = Origin("n", "x = f(y) \\", "a.py:1 in f: first\nsecond \\")
        o.store("c", i, o.neg(o.load("a", i, torch.float32)))

    made = plan([body([20], record)], [buffer("a", torch.float32, [20])], [buffer("c", torch.float32, [20])])
    call, _ = compile_plan(made)
    a, c = torch.randn(20), torch.empty(20)
    call([a, c])
    assert torch.equal(c, -a)


def test_names_known_and_unknown():
    assert overrides.expression("lshift", "a", "b") == "lshift(a, b)"
    assert overrides.expression("add", "a", "b") == "a + b"
    assert not overrides.known("no_such_op")
    with pytest.raises(AttributeError):
        overrides.no_such_op
