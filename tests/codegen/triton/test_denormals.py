"""Numbers near zero stay what they are: no instruction of a kernel flushes them, whatever Triton does by default.

The device library's own approximations (`ex2.approx.ftz` of a number that it has scaled) are those of torch's kernels.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from argand.codegen.triton.functions import HELPERS, TABLE, expression
from argand.runtime.gpu.device.target import GpuTarget
from argand.runtime.gpu.kernels import triton_compile
from argand.runtime.gpu.kernels.spec import LaunchSpec

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
INTEGERS = "floordiv truncdiv remainder lshift rshift bitwise_and bitwise_or bitwise_xor bitwise_not".split()
BINARY = "add sub mul truediv fmod maximum minimum pow atan2 copysign".split()
# Of bools, or bools themselves.
OTHERS = "logical_and logical_or logical_xor logical_not eq ne lt le gt ge isnan isinf isfinite signbit where".split()
FLOATS = [name for name in TABLE if name not in (*INTEGERS, *OTHERS)]
SPEC = LaunchSpec("kernel", ("*fp32",) * 4, (("BLOCK", 128),), 1, 1)
SPEC_OF_POINTS = "x = tl.arange(0, BLOCK)"


def flushing(names: list[str]) -> list[str]:
    """Instructions that flush numbers near zero, besides approximations, in kernels of all these functions."""
    lines = [SPEC_OF_POINTS, *(f"{letter} = tl.load({letter}_ptr + x)" for letter in "abc")]
    for number, name in enumerate(names):
        operands = ["a", "b", "c"][: 3 if name == "fma" else 2 if name in BINARY else 1]
        lines.append(f"tl.store(out_ptr + {number} * BLOCK + x, {expression(name, torch.float32, operands)})")
    body = "\n".join("    " + line for line in lines)
    head = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
    kernel = f"@triton.jit\ndef kernel(a_ptr, b_ptr, c_ptr, out_ptr, BLOCK: tl.constexpr):\n{body}\n"
    text = "\n".join((head, *HELPERS.values(), kernel))
    _, made = triton_compile.compile_stages(text, SPEC, GpuTarget("cuda", 90, 32), aligned=True)
    found = re.findall(r"\b[\w.]+\.ftz[\w.]*", made["ptx"])
    return sorted({each for each in found if ".approx." not in each})


def test_no_function_flushes_numbers_near_zero() -> None:
    assert {"exp", "log", "ceil", "tanh", "fma"} <= set(FLOATS)
    assert flushing(FLOATS) == []


def test_the_compilers_default_would(monkeypatch: Any) -> None:
    monkeypatch.setattr(triton_compile, "FLUSH_DENORMALS", True)
    assert "cvt.rpi.ftz.f32.f32" in flushing(["ceil"]) and flushing(["log"])
