"""Code for CPUs with narrower vectors than this machine's: it must compile with their flags alone, and be right."""

from __future__ import annotations

import pytest
import torch
from cpp_kernels import body, buffer, compile_plan, plan, sample

from argand.ir.operations import UNARY
from argand.runtime import toolchain

F32 = torch.float32
X86 = [isa for _, isa in toolchain._ISAS if isa.name != "neon"]
RUNNABLE = (
    []
    if toolchain.cpu_isa().name in ("neon", "generic")
    else [isa for isa in X86 if isa.vector_bytes <= toolchain.cpu_isa().vector_bytes]
)
FLOAT_OPS = [op for op in UNARY if op not in ("bitwise_not", "logical_not")]


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
def test_functions(isa):
    n = 75

    def record(o, i):
        for op in FLOAT_OPS:
            o.store(f"c_{op}", i, o.unary(op, o.load("a", i, F32)))

    made = plan([body([n], record)], [buffer("a", F32, [n])], [buffer(f"c_{op}", F32, [n]) for op in FLOAT_OPS])
    run, _ = compile_plan(made, isa=isa)
    a = sample([n], F32)
    found = [torch.empty(n) for _ in FLOAT_OPS]
    run([a, *found])
    for op, result in zip(FLOAT_OPS, found):
        # without a fused multiply-add, errors near zeros of a function are larger
        exact = (
            torch.polygamma(1, a) if op == "trigamma" else (getattr(torch, op, None) or getattr(torch.special, op))(a)
        )
        torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-6, equal_nan=True, msg=op)


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda isa: isa.name)
def test_memory_conversions_and_reductions(isa):
    rows, columns = 9, 61
    half, bf16 = torch.float16, torch.bfloat16

    def pointwise(o, i, j):
        x = o.load("a", columns * i + j, F32)
        o.store("h", columns * i + j, o.to_dtype(x, half))
        o.store("b", columns * i + j, o.to_dtype(x, bf16))
        o.store("m", columns * i + j, o.gt(x, o.const(0.25)))
        o.store("t", columns * i + j, o.load("a", rows * j + i, F32))

    def reduced(o, i, r):
        x = o.load("a", columns * i + r, F32)
        for kind in ("sum", "max", "argmax"):
            o.store(kind, i, o.reduction(kind, x))

    shapes = {"h": half, "b": bf16, "m": torch.bool, "t": F32}
    outputs = [buffer(name, dtype, [rows, columns]) for name, dtype in shapes.items()]
    outputs += [buffer("sum", F32, [rows]), buffer("max", F32, [rows]), buffer("argmax", torch.int64, [rows])]
    made = plan(
        [body([rows, columns], pointwise), body([rows], reduced, [columns])],
        [buffer("a", F32, [rows, columns])],
        outputs,
    )
    run, _ = compile_plan(made, isa=isa)
    a = torch.randn(rows, columns)
    found = [torch.empty(tuple(int(n) for n in b.size), dtype=b.dtype) for b in outputs]
    run([a, *found])
    flipped = a.reshape(columns, rows).t()
    for result, expected in zip(found, [a.to(half), a.to(bf16), a > 0.25, flipped, a.sum(1), a.amax(1), a.argmax(1)]):
        torch.testing.assert_close(result, expected)
