"""Kernels on CPU tensors. The interpreter is chosen before triton is imported, so each test is a process of its own."""

from __future__ import annotations

import os
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import warm

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
HERE = Path(__file__).resolve().parent

PRELUDE = """
import sys; sys.path.insert(0, {here!r})
import torch
from runtime.gpu.kernel_texts import ADD, ADD_SPEC, unary
from argand.runtime.gpu.kernels.load import load_triton_kernels

def run(expression, x, out, kinds, n=None, helpers=""):
    kernel, = load_triton_kernels(unary(expression, helpers=helpers), {{"f": (kinds, (("BLOCK", 64),), 4, 1)}}, "cpu")
    n = x.numel() if n is None else n
    kernel(-(-x.numel() // 64), 1, 1, x, out, n)
    return out
"""


def interpreted(body: str, *, interpret: str = "1") -> str:
    """What a program prints under the interpreter."""
    text = PRELUDE.format(here=str(HERE.parents[2])) + textwrap.dedent(body)
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    done = warm.run(["-c", text], env=environment, imported="interpreter" if interpret == "1" else "")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Warning" not in done.stderr, done.stderr[-4000:]
    return done.stdout


def test_add() -> None:
    interpreted("""
        kernel, = load_triton_kernels(ADD, {"add": ADD_SPEC}, "cpu")
        x, y, out = torch.randn(300), torch.randn(300), torch.zeros(301)
        kernel(3, 1, 1, x, y, out, 300)
        assert torch.equal(out[:300], x + y) and out[300] == 0
        kernel(0, 1, 1, x, y, out, 300)
        base = torch.randn(400)
        kernel(3, 1, 1, base[7:307], base[90:390], out, 300)
        assert torch.equal(out[:300], base[7:307] + base[90:390])
        leaf = torch.randn(300, requires_grad=True)
        kernel(3, 1, 1, leaf, y, out, 300)
        assert torch.equal(out[:300], leaf.detach() + y)
    """)


def test_device_library() -> None:
    interpreted("""
        names = {"tanh": torch.tanh, "erf": torch.erf, "log1p": torch.log1p, "expm1": torch.expm1, "acosh": torch.acosh,
                 "lgamma": torch.lgamma, "erfinv": torch.erfinv, "rint": torch.round, "cyl_bessel_i0": torch.special.i0,
                 "isnan": torch.isnan, "j0": torch.special.bessel_j0}
        for dtype, kind in ((torch.float32, "*fp32"), (torch.float64, "*fp64")):
            last = 4 * torch.finfo(dtype).eps  # vectors and what is left over of them take other instructions
            x = torch.cat([torch.randn(100, dtype=dtype) * 2, torch.tensor([0.0, -0.0, float("inf"), float("nan")], dtype=dtype)])
            for name, eager in names.items():
                out = run(f"libdevice.{name}(x)", x, torch.zeros_like(x), (kind, kind, "i32"))
                torch.testing.assert_close(out, eager(x).to(dtype), rtol=last, atol=0.0, equal_nan=True, msg=name)
            out = run("libdevice.pow(x, x)", x, torch.zeros_like(x), (kind, kind, "i32"))
            torch.testing.assert_close(out, torch.pow(x, x), rtol=last, atol=0.0, equal_nan=True)
            x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 1e30], dtype=dtype)
            out = run("libdevice.round(x)", x, torch.zeros_like(x), (kind, kind, "i32"))
            assert out[:5].tolist() == [1.0, 2.0, 3.0, -1.0, -3.0]
    """)


def test_device_library_reached_in_every_way() -> None:
    interpreted("""
        x = torch.randn(64)
        helper = "@triton.jit\\ndef inner(x):\\n    return libdevice.tanh(x)\\n"
        cuda = "from triton.language.extra.cuda import libdevice as lib\\n"
        kinds = ("*fp32", "*fp32", "i32")
        for expression, helpers in (("inner(x)", helper), ("tl.extra.libdevice.tanh(x)", ""), ("lib.tanh(x)", cuda)):
            assert torch.equal(run(expression, x, torch.zeros(64), kinds, helpers=helpers), torch.tanh(x)), expression
        from triton.language.extra import libdevice
        assert libdevice.tanh(x) is None  # as triton left it
    """)


def test_every_function_of_the_table_computes() -> None:
    interpreted("""
        import inspect, re, numpy as np
        from argand.runtime.gpu.kernels import libdevice as own
        from triton.language.extra.cuda import libdevice
        symbols = set(re.findall(r'"(__nv_[a-z0-9_]+)"', inspect.getsource(libdevice)))
        known = {symbol for symbol in symbols if own.function(symbol)}
        assert {"__nv_tanhf", "__nv_erf", "__nv_log1pf", "__nv_powf", "__nv_fmaf_rn", "__nv_clzll"} <= known
        assert len(known) > 150, len(known)
        try:
            own.call("__nv_byte_perm", [np.zeros(1, np.int32)] * 3, np.dtype(np.int32))
        except NotImplementedError as error:
            assert "__nv_byte_perm" in str(error)
        else:
            raise AssertionError
        x = np.array([3.0], np.float32)
        assert own.call("__nv_fmaf", [x, x, -x * x], np.dtype(np.float32)) == 0
        assert own.call("__nv_clz", [np.array([1], np.int32)], np.dtype(np.int32)) == 31
        assert own.call("__nv_cbrtf", [np.array([27.0], np.float32)], np.dtype(np.float32)) == 3
        assert own.call("__nv_mulhi", [np.array([2**30], np.int32)] * 2, np.dtype(np.int32)) == 2**28
    """)


def test_narrow_floats_are_rounded_to_nearest() -> None:
    interpreted("""
        x = torch.cat([torch.randn(500), torch.tensor([1.9999, 255.9, 3.9961, float("inf"), float("nan"), 1e-40, 65520.0])])
        for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float8_e5m2, "fp8e5")):
            out = run(f"x.to(out.dtype.element_ty)", x, torch.zeros(x.shape, dtype=dtype), ("*fp32", "*" + kind, "i32"))
            same = x.to(dtype).float().nan_to_num(nan=7.0) == out.float().nan_to_num(nan=7.0)
            assert same.all(), (dtype, x[~same], out[~same])
        half = x.to(torch.bfloat16)
        for dtype, kind in ((torch.float32, "fp32"), (torch.float64, "fp64"), (torch.float16, "fp16")):
            out = run("x.to(out.dtype.element_ty)", half, torch.zeros(x.shape, dtype=dtype), ("*bf16", "*" + kind, "i32"))
            assert torch.equal(out.nan_to_num(nan=7.0), half.to(dtype).nan_to_num(nan=7.0)), dtype
        wide = torch.randn(64, dtype=torch.float64)
        out = run("x.to(tl.bfloat16)", wide, torch.zeros(64, dtype=torch.bfloat16), ("*fp64", "*bf16", "i32"))
        assert torch.equal(out, wide.to(torch.bfloat16))
    """)


def test_fused_multiply_add_rounds_once() -> None:
    interpreted("""
        x = torch.randn(64)
        out = run("tl.fma(x, x, -(x * x))", x, torch.zeros(64), ("*fp32", "*fp32", "i32"))
        exact = (x.double() * x.double() - (x * x).double()).float()
        assert torch.equal(out, exact) and out.abs().sum() > 0
    """)


def test_integers_have_the_types_of_the_signature() -> None:
    interpreted("""
        x = torch.ones(64, dtype=torch.int64)  # whole blocks: n is no bound here
        out = run("x * n * 1000000", x, torch.zeros_like(x), ("*i64", "*i64", "i64"), n=8000)
        assert out.tolist() == [8_000_000_000] * 64
        x = torch.zeros(64, dtype=torch.int32)
        assert run("(n * 1000000).to(tl.int64)", x, torch.zeros(64, dtype=torch.int64), ("*i32", "*i64", "i64"), n=8000)[0] == 8_000_000_000
        try:
            run("x", x, x.clone(), ("*i32", "*i32", "i32"), n=1 << 40)
        except OverflowError:
            pass
        else:
            raise AssertionError
        flags = torch.tensor([True, False, True, True])
        assert run("(x + 1).to(tl.int8)", flags, torch.zeros(4, dtype=torch.int8), ("*i8", "*i8", "i32")).tolist() == [2, 1, 2, 2]
    """)


def test_without_the_interpreter_there_is_a_message() -> None:
    out = interpreted(
        """
        from argand.errors import GpuError
        try:
            load_triton_kernels(ADD, {"add": ADD_SPEC}, "cpu")
        except GpuError as error:
            print(error)
        """,
        interpret="0",
    )
    assert "TRITON_INTERPRET=1" in out


COMBINED = """
@triton.jit
def later(x, at, y, other):
    right = other > at
    return tl.where(right, y, x), tl.where(right, other, at)

@triton.jit
def joined(a, b, c, d):  # x -> a * x + b, one after the other: the order counts
    return c * a, c * b + d

@triton.jit
def maximum(x, y):
    return tl.where((x > y) | (x != x), x, y)

@triton.jit
def kernel(x, out, last, total, slopes, places, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = r * COLUMNS + c
    value = tl.load(x + at, at < n)
    tl.store(out + tl.arange(0, COLUMNS), tl.reduce(value, 0, maximum))
    latest, _ = tl.reduce((value, at), 1, later, keep_dims=True)
    tl.store(last + r, latest)
    tl.store(total, tl.reduce(value, None, maximum))
    a, b = tl.associative_scan((value, value), 1, joined)
    tl.store(slopes + at, a)
    tl.store(places + at, b)
    a, b = tl.associative_scan((value, value), 0, joined, reverse=True)
    tl.store(slopes + ROWS * COLUMNS + at, a)
    tl.store(places + ROWS * COLUMNS + at, b)
"""


def test_reductions_and_scans_combine_neighbours_in_their_order() -> None:
    interpreted(f"""
        text = "import triton\\nimport triton.language as tl\\n" + {COMBINED!r}
        spec = (("*fp64",) * 6 + ("i32",), (("ROWS", 4), ("COLUMNS", 16)), 4, 1)
        kernel, = load_triton_kernels(text, {{"kernel": spec}}, "cpu")
        x = torch.randn(4, 16, dtype=torch.float64)
        x[2, 3] = float("nan")
        out, last, total = torch.zeros(16).double(), torch.zeros(4).double(), torch.zeros(1).double()
        slopes, places = torch.zeros(2, 4, 16).double(), torch.zeros(2, 4, 16).double()
        kernel(1, 1, 1, x, out, last, total, slopes, places, 64)
        assert torch.equal(out.nan_to_num(7.0), x.amax(0).nan_to_num(7.0)) and total.isnan().all()
        assert torch.equal(last, x[:, -1])
        for place, rows in ((0, x), (1, x.flip(0).t())):
            a = b = None
            for number in range(rows.shape[1]):
                value = rows[:, number]
                a, b = (value, value) if a is None else (value * a, value * b + value)
                got = [each[place] if place == 0 else each[place].flip(0).t() for each in (slopes, places)]
                torch.testing.assert_close(got[0][:, number], a, equal_nan=True)
                torch.testing.assert_close(got[1][:, number], b, equal_nan=True)
    """)
