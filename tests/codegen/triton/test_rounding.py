"""Which error functions are the coarse one: beside 1, in what is rounded to 16 bits before anybody sees it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "schedule"))
from loop_programs import Builder  # noqa: E402

from argand.codegen.triton import generate  # noqa: E402
from argand.ir.target import gpu  # noqa: E402
from argand.schedule.pipeline import schedule  # noqa: E402


def text_of(*, half: bool = True, beside: float = 1.0, keeps: bool = False) -> str:
    """The code of `x * (erf(x) + beside)` of 16-bit numbers."""
    b = Builder()

    def fn(o: Any, v: Any) -> Any:
        x = o.to_dtype(v, torch.float32)
        y = o.mul(x, o.add(o.erf(x), o.constant(beside, x.dtype)))
        return o.to_dtype(y, torch.bfloat16) if half else y

    x = b.input(256, dtype=torch.bfloat16)
    outputs = [b.pointwise(fn, x)]
    if keeps:
        outputs.append(b.pointwise(lambda o, v: o.erf(o.to_dtype(v, torch.float32)), x))
    kernels = schedule(b.program(*outputs), targets=lambda _: gpu(132)).kernels()
    return str(generate(kernels, 132).text)


def test_beside_one_and_rounded() -> None:
    text = text_of()
    assert "erf_beside_one(tmp" in text and "def erf_beside_one" in text and "libdevice.erf(" not in text


@pytest.mark.parametrize("how", [{"half": False}, {"beside": 0.125}, {"keeps": True}])
def test_others_are_the_library_s(how: dict[str, Any]) -> None:
    assert "libdevice.erf(" in text_of(**how)
