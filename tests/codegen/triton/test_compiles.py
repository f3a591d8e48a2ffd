"""Generated kernels compiled for GPUs that are not here: NVIDIA's sm_90 and AMD's gfx942, without a spill."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from sweeps import WHOLE, chessboard

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("schedule", "lower")]
from loop_programs import Builder, layer_norm, scan, softmax  # noqa: E402
from lowering_helpers import graph_of  # noqa: E402
from product_programs import Products, activation, both_operands  # noqa: E402

from argand.autograd import trace_inference  # noqa: E402
from argand.codegen.triton import generate  # noqa: E402
from argand.graph.sizes.expr import Sym  # noqa: E402
from argand.ir.target import amd_gpu, gpu  # noqa: E402
from argand.lower import lower  # noqa: E402
from argand.schedule.pipeline import join_kernels, schedule  # noqa: E402
from argand.schedule.products.kernels import proposals, tiles_for, with_tile  # noqa: E402
from argand.schedule.products.operands import with_operands  # noqa: E402

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
    "cumulative sums": lambda b: scan(b, "sum", b.input(4096, 1024), 1),
    "long cumulative sums": lambda b: scan(b, "sum", b.input(512, 8192, dtype=torch.int64), 1),
    "cumulative sums of columns": lambda b: scan(b, "sum", b.input(1024, 512), 0),
    "argmax": lambda b: b.reduce("argmax", b.input(4096, 1000), [1]),
}


def many(b, count, size=lambda number: 64 * (number + 1)):
    """An optimizer's step: two results of three tensors each."""
    outs = []
    for number in range(count):
        p, g, m = [b.input(size(number), 48) for _ in range(3)]
        average = b.pointwise(lambda o, m, g: o.add(o.mul(m, o.constant(0.9, m.dtype)), g), m, g)
        outs += [average, b.pointwise(lambda o, p, m: o.sub(p, o.mul(m, o.constant(0.1, m.dtype))), p, average)]
    return outs


def compiled(source, spec, target, folder, *, multiples=()):
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
    aligned |= {(at,): [["tt.divisibility", 16]] for at in multiples}
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


SWEEP = list(itertools.product(PROGRAMS, TARGETS))
# Else each program is compiled for one of the two.
SWEEP = [one for number, one in enumerate(SWEEP) if WHOLE or (number + number // 2) % 2]


@pytest.mark.parametrize(("name", "target"), SWEEP)
def test_no_spills(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    b = Builder()
    made = schedule(program(b, name), targets=lambda _: gpu(132))
    source = generate(made.kernels(), 132)
    assert source.specs
    for spec in source.specs.values():
        assert spilled(compiled(source, spec, target, tmp_path), tmp_path) == 0


DEPTHWISE = [(3, 2, "gfx942"), (5, 1, "sm_90"), (7, 1, "sm_90")]


@pytest.mark.parametrize(("window", "stride", "target"), DEPTHWISE if WHOLE else DEPTHWISE[:2])
def test_depthwise_convolutions(window, stride, target, tmp_path, monkeypatch):
    """With the channels innermost, results and gradients: no spill, and neighbouring channels are read at once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    places = ([stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], 96)

    def function(grad, x, weight):
        made = torch.ops.aten.convolution_backward(grad, x, weight, None, *places, [True, True, False])
        return torch.ops.aten.convolution(x, weight, None, *places).relu(), *made[:2]

    extents = ((4, 96, 28 // stride, 28 // stride), (4, 96, 28, 28), (96, 1, window, window))
    args = [torch.zeros(size, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last) for size in extents]
    # (windows and gradients that a target leaves to its library, too)
    chosen = replace(gpu(132) if target == "sm_90" else amd_gpu(304), depthwise_taps=49, depthwise_weights=True)
    traced = trace_inference(*graph_of(function, tuple(args), {}))
    made = schedule(lower(traced, targets=lambda _: chosen), targets=lambda _: chosen)
    kernels, steps = len(made.kernels()), len(made.steps)
    assert kernels == steps  # (numbers: pytest would print a schedule whole)
    source = generate(made.kernels(), chosen.processors)
    wide = 0
    for spec in source.specs.values():
        kernel = compiled(source, spec, target, tmp_path)
        assert spilled(kernel, tmp_path) == 0, spec.name
        wide = max(wide, len(re.findall(r"ld\.global\.v4", kernel.asm.get("ptx", ""))))
    assert target != "sm_90" or wide >= 2 * window * window


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


@pytest.mark.parametrize("target", [gpu(132), amd_gpu(304)], ids=["nvidia", "amd"])
def test_kernels_of_many_segments(target, tmp_path, monkeypatch):
    """Pointers of hundreds of tensors do not spill, and accesses are wide where all sizes are multiples of 16."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    b = Builder()
    made = schedule(b.program(*many(b, 70)), targets=lambda _: target)
    join_kernels(made)
    assert sum(len(plan.segments) for plan in made.kernels()) == 70
    source = generate(made.kernels(), target.processors)
    for name, spec in source.specs.items():
        assert len(spec.signature) <= target.pointers
        kernel = compiled(source, spec, "gfx942" if target == amd_gpu(304) else "sm_90", tmp_path)
        assert spilled(kernel, tmp_path) == 0, name
        if "ptx" in kernel.asm:
            assert re.search(r"ld\.global\.v4", kernel.asm["ptx"]) and re.search(r"st\.global\.v4", kernel.asm["ptx"])


@pytest.mark.parametrize("name", ["add", "softmax", "columns"])
def test_variants_for_sizes(name, tmp_path, monkeypatch):
    """Sizes that are multiples of 16 have wide accesses; positions of 32 bits take fewer registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    rows, columns = Sym("s0"), Sym("s1")
    b = Builder()
    made = {
        "add": lambda: b.pointwise(lambda o, x, y: o.add(x, y), b.input(rows, columns), b.input(rows, columns)),
        "softmax": lambda: softmax(b, b.input(rows, columns)),
        "columns": lambda: b.reduce("sum", b.input(rows, columns), [0]),
    }[name]()
    source = generate(schedule(b.program(made), targets=lambda _: gpu(132)).kernels(), 132)
    (spec,) = source.specs.values()
    assert spec.reach
    places = [place for place, _ in spec.sizes]
    registers = []
    for wide in (True, False):
        kinds = tuple("i64" if kind == "i64" and wide else "i32" if kind == "i64" else kind for kind in spec.signature)
        constants = tuple((key, int(wide) if key == "WIDE" else value) for key, value in spec.constants)
        one = replace(spec, signature=kinds, constants=constants)
        for multiples in ((), places):
            kernel = compiled(source, one, "sm_90", tmp_path, multiples=multiples)
            assert spilled(kernel, tmp_path) == 0
            assert bool(re.search(r"ld\.global\.v[24]", kernel.asm["ptx"])) is bool(multiples), (wide, multiples)
        registers.append(kernel.asm["ptx"].count(".b64"))
    assert registers[1] < registers[0]


PRODUCTS = {  # sizes, dtype, what float32 products are, how many tiles, the program
    "bfloat16": ((4096, 768, 3072), torch.bfloat16, "ieee", 9, activation),
    "operands": ((4096, 768, 3072), torch.bfloat16, "ieee", 3, both_operands),
    "float32": ((512, 256, 512), torch.float32, "ieee", 1, activation),
    "tf32": ((512, 256, 512), torch.float32, "tf32", 1, activation),
}
MEMORY = {"sm_90": 227 << 10, "gfx942": 64 << 10}


@pytest.mark.parametrize(("name", "target"), chessboard(PRODUCTS, TARGETS))
def test_products_have_no_spills(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    sizes, dtype, precision, count, program = PRODUCTS[name]
    p = Products(dtype, *sizes)
    made = schedule(p.b.program(*program(p)), targets=lambda _: gpu(132, MEMORY[target]))
    found = proposals(made, precision)[-1]
    found = with_operands(made, found) or found
    tiles = tiles_for(found.plan, gpu(132, MEMORY[target]))[:count]
    assert tiles
    tiles = tiles if WHOLE else tiles[::8]
    for number, tile in enumerate(tiles):
        source = generate([with_tile(found, tile, f"product_{number}")], 132)
        (spec,) = source.specs.values()
        kernel = compiled(source, spec, target, tmp_path)
        assert spilled(kernel, tmp_path) == 0, tile
        assert kernel.metadata.shared <= MEMORY[target], tile
        if target == "sm_90" and dtype.itemsize == 2 and tile.rows >= 64:
            assert "wgmma" in kernel.asm["ptx"], tile
