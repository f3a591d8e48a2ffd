"""Schedules whose kernels run as Triton programs on CPU tensors: `TRITON_INTERPRET=1` must be set.

    TRITON_INTERPRET=1 python tests/codegen/triton/interpreted.py [--examples N]

Hand-made loop programs and random ones, over shapes, strides and dtypes, compared with the unfused loops. Prints how many kernels ran.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "schedule"), str(HERE.parents[2])]

import torch  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from loop_programs import Builder, layer_norm, scan, softmax  # noqa: E402
from product_programs import ALONE, FUSED, OPERANDS, Products  # noqa: E402
from test_fusion import add, random_program, relu  # noqa: E402
from test_scans import random_scans  # noqa: E402

import sweeps  # noqa: E402
from argand.codegen.triton import generate, statements  # noqa: E402
from argand.graph.sizes.expr import Var, evaluate, product  # noqa: E402
from argand.ir.interpret import interpret  # noqa: E402
from argand.ir.kernel import Tile  # noqa: E402
from argand.ir.target import gpu  # noqa: E402
from argand.lower.recorder import Recorder  # noqa: E402
from argand.runtime.gpu.kernels.load import load_triton_kernels  # noqa: E402
from argand.schedule.pipeline import join_kernels, schedule  # noqa: E402
from argand.schedule.products.kernels import adopt, named, product_names, proposals, with_tile  # noqa: E402
from argand.schedule.products.operands import with_operands  # noqa: E402
from argand.schedule.reference import run_schedule  # noqa: E402
from argand.schedule.verify import verify  # noqa: E402

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16, "i1": torch.bool}
DTYPES.update({"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8})


class Interpreter:
    """Runs kernels, each of one source text; counts them."""

    def __init__(self, processors=132):
        self.processors, self.ran = processors, 0

    def __call__(self, plan, env, memory):
        source = generate([plan], self.processors)
        spec = source.specs[plan.name]
        (kernel,) = load_triton_kernels(source.text, {plan.name: spec}, "cpu")
        points = [int(evaluate(count, env)) for count in spec.points]
        grid = [-(-count // block) for count, block in zip(points, spec.blocks)]
        total = int(evaluate(product(spec.points), env))
        rows = [torch.empty(total * int(evaluate(n, env)), dtype=DTYPES[kind[1:]]) for kind, n in spec.workspaces]
        tensors = [memory[name] for name in (*plan.inputs, *plan.outputs)]
        kernel(*grid, *(1,) * (3 - len(grid)), *tensors, *rows, *(env[name] for name in plan.symbols))
        self.ran += 1


def check(builder, *outputs, inputs=None, processors=132, tolerance=None):
    """Compare the kernels of a program for a GPU with its unfused loops; returns the plans."""
    program = builder.program(*outputs)
    made = schedule(program, targets=lambda _: gpu(processors))
    join_kernels(made)
    verify(made)
    inputs = builder.example() if inputs is None else inputs
    run = Interpreter(processors)
    for want, got in zip(interpret(program, inputs), run_schedule(made, inputs, run), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **(tolerance or {}))
    assert run.ran == sum(hasattr(step, "stages") for step in made.steps)
    COUNT.append(run.ran)
    return made.kernels()


COUNT: list[int] = []


def rows():
    """Softmax and layer norm of rows that fit a block, that are cut by a mask, that are walked in rounds, that are few."""
    for shape in ((8, 128), (64, 50), (300, 7), (3, 20000), (1, 9000), (5, 1)):
        b = Builder()
        plans = check(b, softmax(b, b.input(*shape)), processors=1)
        assert len(plans) == 1 or 1 in shape
        b = Builder()
        check(b, layer_norm(b, b.input(*shape), b.input(shape[1]), b.input(shape[1])))
    b = Builder()
    x = b.input(6, 40, 33)
    check(b, softmax(b, x, dim=1))
    b = Builder()
    x = b.input(6, 40, 33)
    check(
        b,
        b.reduce("sum", x, [1]),
        b.reduce("max", x, [0, 2]),
        b.reduce("argmax", x, [1]),
        b.reduce("argmin", x, [0, 2]),
    )


def error_functions():
    """The coarse one, as if its sum with 1 were rounded."""
    far = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, 5.0, -5.0, 40.0, -40.0])
    x = torch.cat([torch.linspace(-4.5, 4.5, 3000), far])
    b = Builder()
    total = b.pointwise(lambda o, v: o.add(o.erf(v), o.constant(1.0, v.dtype)), b.input(x.numel()))
    with mock.patch.object(statements, "is_coarse", lambda *_: True):
        (plan,) = check(b, total, inputs=[x], tolerance={"rtol": 0.0, "atol": 1.8e-7})
        assert "erf_beside_one" in generate([plan], 132).text


def layouts():
    """Transposed, expanded, narrowed operands; both axes contiguous somewhere."""
    b = Builder()
    x, y = b.input(96, 130), b.input(130, 96)
    plans = check(b, b.pointwise(add, x.permute(1, 0), y))
    assert "YBLOCK" in generate(plans, 132).text
    b = Builder()
    check(b, b.pointwise(add, b.input(5, 7, 9).permute(2, 0, 1), b.input(9, 5, 7)))
    b = Builder()
    check(b, b.pointwise(add, b.input(1, 70).expand(33, 70), b.input(34, 70).narrow(0, 1, 33)))
    b = Builder()
    x = b.input(33, 70)
    total = b.reduce("sum", x, [0], keepdim=True)
    check(b, b.pointwise(lambda o, v, t: o.sub(v, t), x, total.expand(33, 70)))


def dtypes():
    """Conversions between all dtypes, and integer arithmetic that rounds down or wraps around."""
    kinds = list(DTYPES.values())
    for source in kinds:
        b = Builder()
        x = b.input(70, dtype=source)

        def converted(target, b=b, x=x, source=source):
            def fn(o, v):
                wide = o.to_dtype(v, torch.float32) if source in (torch.bfloat16, torch.float16) else v
                return o.to_dtype(wide, target)

            return b.pointwise(fn, x)

        check(b, *[converted(target) for target in kinds])
    for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8):
        b = Builder()
        x = b.input(257, dtype=dtype)
        outs = [
            b.pointwise(lambda o, v, op=op, c=c: o.binary(op, v, o.constant(c, v.dtype)), x)
            for op in ("floordiv", "truncdiv", "remainder", "fmod", "maximum", "minimum", "bitwise_xor", "mul", "sub")
            for c in (3, 7)
        ]
        outs += [b.pointwise(lambda o, v, op=op: o.unary(op, v), x) for op in ("neg", "abs", "sign", "bitwise_not")]
        data = torch.randint(0, 256, (257,)).to(dtype)
        data[:2] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max])
        check(b, *outs, inputs=[data])


def functions():
    """Every function of floats, special values included."""
    names = "neg abs sign floor ceil round trunc reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh"
    names += " cosh tanh asinh acosh atanh erf erfc sigmoid"
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-8, 3e38, float("inf"), float("-inf"), float("nan"), 2.5, -3.5]
    )
    for dtype in (torch.float32, torch.float64):
        b = Builder()
        x, y = b.input(113, dtype=dtype), b.input(113, dtype=dtype)
        outs = [b.pointwise(lambda o, v, n=n: o.unary(n, v), x) for n in names.split()]
        outs += [
            b.pointwise(lambda o, v, w, n=n: o.binary(n, v, w), x, y)
            for n in ("truediv", "fmod", "pow", "maximum", "minimum", "atan2", "copysign")
        ]
        outs += [
            b.pointwise(lambda o, v, n=n: o.emit(n, (v,), torch.bool), x)
            for n in ("isnan", "isinf", "isfinite", "signbit")
        ]
        data = [
            torch.cat((special, torch.randn(100))).to(dtype),
            torch.cat((special.flip(0), torch.randn(100))).to(dtype),
        ]
        check(b, *outs, inputs=data, tolerance={"rtol": 2e-6, "atol": 1e-7})


def lookups():
    """Gathers with negative positions, masked reads, additions into elements that several points hit."""
    b = Builder()
    table, at = b.input(11, 6), b.input(40, dtype=torch.int64)
    z = [Var("z0"), Var("z1")]
    ops = Recorder({z[0]: at.size[0], z[1]: table.size[1]})
    row = ops.indirect(ops.load(at.buffer, z[0], torch.int64), table.size[0], True)
    value = ops.load(table.buffer, Var(f"i{row.id}") * 6 + z[1], torch.float32)
    out = b.buffer([40, 6])
    ops.store(out.buffer, out.at(z), value)
    b._node(ops, z, [at.size[0], table.size[1]], (), (), out, "gather")
    check(b, out, inputs=[torch.randn(11, 6), torch.randint(-11, 11, (40,))])

    b = Builder()
    x = b.input(50)
    z0 = Var("z0")
    ops = Recorder({z0: x.size[0]})
    inside = ops.lt(ops.index_expr(z0, torch.int64), ops.constant(45, torch.int64))
    shifted = ops.masked(inside, lambda: ops.load(x.buffer, z0 + 5, torch.float32), -1.0)
    out = b.buffer([50])
    ops.store(out.buffer, z0, shifted)
    b._node(ops, [z0], [x.size[0]], (), (), out, "shift")
    check(b, out)

    b = Builder()
    at, x = b.input(300, dtype=torch.int64), b.input(300)
    zero = b.pointwise(lambda o, v: o.mul(v, o.constant(0.0, torch.float32)), b.input(7))
    ops = Recorder({z0: at.size[0]})
    place = ops.indirect(ops.load(at.buffer, z0, torch.int64), zero.size[0], False)
    ops.store(zero.buffer, Var(f"i{place.id}"), ops.load(x.buffer, z0, torch.float32), "add")
    b._node(ops, [z0], [at.size[0]], (), (), zero, "scatter")
    check(
        b,
        zero,
        inputs=[torch.randint(0, 7, (300,)), torch.randn(300), torch.randn(7)],
        tolerance={"rtol": 1e-4, "atol": 1e-4},
    )


def long_reductions():
    """One result of many elements: two kernels."""
    b = Builder()
    x = b.input(70_001)
    plans = check(b, b.reduce("sum", x, [0]), b.reduce("max", x, [0]), tolerance={"rtol": 1e-3, "atol": 1e-2})
    assert len(plans) >= 2


def segments():
    """What is done to tensors of all sizes by one kernel: elements, rows, columns."""
    b = Builder()
    outs = []
    for size in (1024, 16, 160, 4096, 33, 5, 1, 2049):
        p, g, m = b.input(size), b.input(size), b.input(size)
        average = b.pointwise(lambda o, m, g: o.add(o.mul(m, o.constant(0.9, m.dtype)), g), m, g)
        outs += [average, b.pointwise(lambda o, p, m: o.sub(p, o.mul(m, o.constant(0.1, m.dtype))), p, average)]
    plans = check(b, *outs)
    assert sorted(len(plan.segments) for plan in plans) == [0, 3, 4]
    b = Builder()
    plans = check(b, *[b.pointwise(relu, b.input(n)) for n in (40000, 16, 30000 * 16, 128 * 9)], processors=1)
    assert "for block in range(" in generate(plans, 1).text
    b = Builder()
    plans = check(b, *[b.reduce(kind, b.input(3, n), [1]) for kind in ("sum", "max") for n in (16, 512, 9008)])
    assert all(plan.segments for plan in plans)
    b = Builder()
    plans = check(b, *[b.reduce("sum", b.input(n, 33), [0]) for n in (40, 70)])
    assert [len(plan.segments) for plan in plans] == [2]


def scans(examples):
    """Cumulative sums and products of rows that a program holds, and of rows that it walks in rounds."""
    for shape in ((5, 70), (3, 9000), (1, 20000), (40, 16)):
        b = Builder()
        x, y = b.input(*shape), b.input(*shape, dtype=torch.int64)
        outs = [scan(b, "sum", b.pointwise(relu, x), 1), scan(b, "sum", x, 0), scan(b, "prod", y, 1)]
        ones = torch.randint(0, 2, shape) * 2 - 1
        check(b, *outs, inputs=[torch.randn(shape), ones], tolerance={"rtol": 1e-4, "atol": 1e-3})

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        b, *outputs = random_scans(data)
        check(b, *outputs, tolerance={"rtol": 1e-4, "atol": 1e-4})

    run()


def rows_of_halves():
    """bfloat16 in and out, float32 between."""
    b = Builder()
    x = b.input(9, 77, dtype=torch.bfloat16)
    wide = b.pointwise(lambda o, v: o.to_dtype(v, torch.float32), x)
    y = softmax(b, wide)
    check(b, b.pointwise(lambda o, v: o.to_dtype(o.mul(v, v), torch.bfloat16), y), b.pointwise(relu, wide))


def products():
    """Products with what reads them, tiles that do not divide them, many rows of tiles, one row."""
    sizes = ((40, 48, 72), (300, 40, 64), (16, 96, 32))
    programs = enumerate((*FUSED, *ALONE, *OPERANDS))
    for (number, program), dtype in sweeps.diagonal(programs, (torch.float32, torch.bfloat16, torch.float16)):
        p = Products(dtype, *sizes[number // 3 % 3])
        loops = p.b.program(*program(p))
        made = schedule(loops, targets=lambda _: gpu(132))
        found, names = proposals(made, "tf32" if number % 2 else "ieee"), product_names(made)
        found = [with_operands(made, each) or each for each in found]
        tile = Tile((16, 32, 64)[number // 2 % 3], 32, (16, 32)[number % 2], 4, 2)
        adopt(made, [(each, named(with_tile(each, tile), names)) for each in found])
        verify(made)
        inputs, run = [x / 4 for x in p.b.example()], Interpreter()
        results = zip(interpret(loops, inputs), run_schedule(made, inputs, run), strict=True)
        for want, got in results:
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert run.ran >= len(found) > 0
        COUNT.append(run.ran)


def random_programs(examples):
    """Random programs of views, pointwise loops, reductions and calls."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        b, outputs = random_program(data)
        check(b, *outputs, processors=data.draw(st.sampled_from([1, 132])))

    run()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    for part in (
        rows, error_functions, layouts, dtypes, functions, lookups, long_reductions, segments, rows_of_halves, products,
    ):  # fmt: skip
        part()
    random_programs(options.examples)
    scans(options.examples)
    print(f"{sum(COUNT)} kernels agree")


if __name__ == "__main__":
    main()
