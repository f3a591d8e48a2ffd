"""Generated kernels compiled for GPUs that are not here: NVIDIA's sm_90 and AMD's gfx942, without a spill."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "schedule"))
from loop_programs import Builder, layer_norm, softmax  # noqa: E402

from argand.codegen.triton import generate  # noqa: E402
from argand.ir.target import gpu  # noqa: E402
from argand.schedule.pipeline import schedule  # noqa: E402

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}


def add(b):
    return b.pointwise(lambda o, x, y: o.add(x, y), b.input(1 << 20), b.input(1 << 20))


def gelu(b):
    return gelu_of(b, b.input(4096, 3072, dtype=torch.bfloat16))


def gelu_of(b, half):
    def fn(o, v):
        x = o.to_dtype(v, torch.float32)
        y = o.mul(x, o.add(o.erf(o.mul(x, o.constant(0.7071, x.dtype))), o.constant(1.0, x.dtype)))
        return o.to_dtype(y, torch.bfloat16)

    return b.pointwise(fn, half)


def transposed(b):
    return b.pointwise(lambda o, x, y: o.mul(x, y), b.input(1024, 512).permute(1, 0), b.input(512, 1024))


def column_sums(b):
    """What a layer's backward has: results and their sums, beside sums of others, over columns."""
    x = b.input(4096, 768, dtype=torch.bfloat16)
    y = gelu_of(b, x)
    return [y, *(b.reduce("sum", each, [0], fn=wide) for each in (x, y, *(b.input(4096, 768) for _ in range(4))))]


def wide(o, v):
    return o.to_dtype(v, torch.float32)


PROGRAMS = {
    "add": add,
    "gelu": gelu,
    "transposed": transposed,
    "softmax": lambda b: softmax(b, b.input(4096, 1024)),
    "long softmax": lambda b: softmax(b, b.input(2048, 50257)),
    "layer norm": lambda b: layer_norm(b, b.input(4096, 768), b.input(768), b.input(768)),
    "column sums": lambda b: b.reduce("sum", b.input(4096, 768), [0]),
    "several column sums": column_sums,
    "softmax of columns": lambda b: softmax(b, b.input(1024, 4096), 0),
    "joined sums": lambda b: [b.reduce("sum", b.input(64, 768), [0]) for _ in range(16)],
    "sum of all": lambda b: b.reduce("sum", b.input(1 << 22), [0]),
    "argmax": lambda b: b.reduce("argmax", b.input(4096, 1000), [1]),
}


def compiled(source, spec, target, folder):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = folder / f"{spec.name}.py"
    path.write_text(source.text)
    found = importlib.util.spec_from_file_location(f"kernels_{spec.name}", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    function = getattr(module, spec.name)
    signature = dict(zip(function.arg_names, spec.signature)) | {name: "constexpr" for name, _ in spec.constants}
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(spec.signature) if kind[0] == "*"}
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages, "sanitize_overflow": False}
    made = ASTSource(function, signature, constexprs=dict(spec.constants), attrs=aligned)
    return triton.compile(made, target=GPUTarget(*TARGETS[target]), options=options)


def program(b, name):
    """The program of that name."""
    made = PROGRAMS[name](b)
    return b.program(*(made if isinstance(made, list) else [made]))


def spilled(kernel, folder):
    """Bytes or registers that a kernel keeps in memory for want of registers."""
    if "amdgcn" in kernel.asm:
        return sum(map(int, re.findall(r"[sv]gpr_spill_count:\s*(\d+)", kernel.asm["amdgcn"])))
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    assert "REG:" in usage
    return sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", usage)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_spills(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    b = Builder()
    made = schedule(program(b, name), targets=lambda _: gpu(132))
    source = generate(made.kernels(), 132)
    assert source.specs
    for spec in source.specs.values():
        assert spilled(compiled(source, spec, target, tmp_path), tmp_path) == 0


def test_wide_accesses(tmp_path, monkeypatch):
    """Contiguous float32 and bfloat16 move 16 bytes at a time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("add", "gelu", "softmax"):
        b = Builder()
        made = schedule(program(b, name), targets=lambda _: gpu(132))
        source = generate(made.kernels(), 132)
        (spec,) = source.specs.values()
        text = compiled(source, spec, "sm_90", tmp_path).asm["ptx"]
        assert re.search(r"ld\.global\.v4", text) and re.search(r"st\.global\.v4", text), name
