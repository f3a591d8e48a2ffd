"""Kernels of flex_attention: what they compute, what they are compiled to, and when there are none."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import warm
from argand.errors import GpuError
from argand.runtime.gpu.operators import flex
from argand.runtime.gpu.operators.flex_text import FlexShape, Lists, Tiles
from sweeps import WHOLE

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3] / "codegen" / "triton"), str(HERE.parents[3] / "schedule")]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")]
PARTS = ("forward", "queries", "keys")
MODS = """@triton.jit
def score_mod(score, b, h, m, n, read0_ptr):
    return score + (n - m).to(tl.float32) * tl.load(read0_ptr + h)

@triton.jit
def score_grad(score, grad, b, h, m, n, read0_ptr):
    return grad

@triton.jit
def mask_mod(b, h, m, n, read0_ptr):
    return m >= n
"""


def shape(width: int, dtype: str = "bf16", scored: bool = True, length: int = 4096, block: int = 128) -> FlexShape:
    strides = ((16 * length * width, length * width, width),) * 8
    lists = Lists(1, 1, length // 128, length // 128, True)
    return FlexShape(
        batch=4, heads=16, keys=16, queries=length, others=length, width=width, value_width=width, dtype=dtype,
        strides=strides, scale=width**-0.5, block=(block, block), by_query=lists, by_key=lists, mods=MODS,
        scored=scored, masked=True, reads=("*fp32",), tiles=Tiles(0, 0, 0, 0),
    )  # fmt: skip


def test_programs_compute_what_eager_computes() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = warm.run([HERE.parents[1] / "flex_programs.py"], env=environment, imported="interpreter")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "programs agree" in done.stdout


SHAPES = [(64, "bf16"), (128, "bf16"), (128, "fp32")]
SWEEP = list(itertools.product(SHAPES, PARTS, ["sm_90", "gfx942"]))
# Else each shape, part and target is among a few.
SWEEP = SWEEP if WHOLE else SWEEP[::5]


@pytest.mark.parametrize(("of", "part", "target"), SWEEP, ids=str)
def test_no_spills(of: Any, part: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_compiles import compiled, spilled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    backend = "hip" if target == "gfx942" else "cuda"
    for scored in (False, True) if WHOLE else (True,):
        text = flex.text_of(part, shape(*of, scored=scored), backend)
        (((signature, _, warps, stages, _),)) = text.specs.values()  # type: ignore[misc]
        spec = SimpleNamespace(name=text.name, signature=signature, constants=(), num_warps=warps, num_stages=stages)
        assert spilled(compiled(SimpleNamespace(text=text.text), spec, target, tmp_path), tmp_path) == 0


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_tiles_divide_the_blocks_of_a_mask(part: str, backend: str) -> None:
    for width in flex.WIDTHS:
        for block in (16, 48, 128, 0):
            for length in (1, 17, 4096):
                one = replace(shape(width), queries=length, others=length, block=(block, block))
                for tiles in flex.smaller_and_smaller(flex.tiles_for(part, one, backend)):
                    assert tiles.rows >= 16 and tiles.columns >= 16
                    assert block % tiles.rows == block % tiles.columns == 0
                    text = flex.text_of(part, one, backend, tiles)
                    assert "$" not in text.text and compile(text.text, "kernel", "exec")


def test_what_kernels_do_not_take() -> None:
    q = torch.empty(2, 4, 32, 64, device="meta", dtype=torch.bfloat16)
    assert flex.refusal(q, q, q, (128, 128), []) == ""
    assert "width" in flex.refusal(q[..., :24], q[..., :24], q, (0, 0), [])
    assert "types" in flex.refusal(q.double(), q.double(), q.double(), (0, 0), [])
    assert "types" in flex.refusal(q, q.float(), q, (0, 0), [])
    assert "block" in flex.refusal(q, q, q, (8, 128), [])
    assert "share" in flex.refusal(q, q[:1], q[:1], (0, 0), [])
    far = torch.empty(1, 1 << 18, 4, 64, device="meta", dtype=torch.bfloat16).transpose(1, 2)
    assert flex.refusal(far, far, far, (0, 0), []) == ""
    far = torch.empty(1, 1 << 23, 4, 64, device="meta", dtype=torch.bfloat16).transpose(1, 2)
    assert "32 bits" in flex.refusal(far, far, far, (0, 0), [])
    assert "reads" in flex.refusal(q, q, q, (0, 0), [q.to(torch.complex64)])


def test_a_gpu_without_room_gets_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def load(text: str, specs: Any, device: str) -> list[str]:
        tried.append(text)
        if len(tried) < 3:
            raise GpuError("too much shared memory")
        return ["kernel"]

    monkeypatch.setattr(flex, "load_triton_kernels", load)
    kernel, grid, text = flex._kernel.__wrapped__("forward", shape(128), "cpu")
    assert kernel == "kernel" and text == tried[-1] and len(set(tried)) == 3 and grid[0] > 4096 // 128


def test_a_gpu_without_any_room_computes_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is the one without kernels, and says why."""
    import argand
    from argand.autograd.tracing import flex as tracing
    from helpers import collected

    def refused(*_: Any) -> Any:
        raise GpuError("too much shared memory")

    def fn(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.attention.flex_attention.flex_attention(q, k, v)

    import torch.nn.attention.flex_attention

    monkeypatch.setattr(tracing, "prepare", refused)
    given = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    with argand.config.patch({"triton.on_cpu": True}), collected("fallback") as seen:
        got = argand.compile(fn, backend="aot_eager")(*given)
    torch.testing.assert_close(got, fn(*given))
    assert "too much shared memory" in seen[0].text()
