"""Builds kernels by hand and runs them through the compiler, for the tests of this folder."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

import sweeps
from argand.codegen import cpp
from argand.graph.sizes.expr import Expr, Var, as_expr
from argand.ir.kernel import KernelPlan, Stage
from argand.ir.loops import Buffer, LoopBody, Origin
from argand.lower.recorder import Recorder
from argand.runtime import toolchain

CPU = torch.device("cpu")


class Build(Recorder):
    """A recorder with short forms."""

    def const(self, number: float, dtype: torch.dtype = torch.float32) -> Any:
        return self.constant(number, dtype)


def strides(size: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    step: Any = as_expr(1)
    for n in reversed(size):
        found.append(step)
        step = step * n
    return tuple(reversed(found))


def buffer(name: str, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any] | None = None) -> Buffer:
    exprs = tuple(as_expr(n) for n in size)
    return Buffer(name, dtype, CPU, exprs, tuple(as_expr(s) for s in stride) if stride is not None else strides(exprs))


def body(
    sizes: Sequence[Any],
    record: Callable[..., None],
    reduction_sizes: Sequence[Any] = (),
    outer: Sequence[tuple[Var, Expr]] = (),
) -> LoopBody:
    """A loop body: `record(ops, *vars, *reduction_vars)` records its statements."""
    own = [Var(f"{'y' if outer else 'x'}{k}") for k in range(len(sizes))]
    reduced = [Var(f"r{k}") for k in range(len(reduction_sizes))]
    variables = [var for var, _ in outer] + own
    all_sizes = [size for _, size in outer] + [as_expr(n) for n in sizes]
    red_sizes = [as_expr(n) for n in reduction_sizes]
    ops = Build(dict(zip(variables + reduced, all_sizes + red_sizes)))
    record(ops, *variables, *reduced)
    return LoopBody(tuple(variables), tuple(all_sizes), tuple(reduced), tuple(red_sizes), ops.statements)


def plan(
    stages: Sequence[LoopBody],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    *,
    outer: Sequence[tuple[Var, Expr]] = (),
    scratch: Sequence[Buffer] = (),
    registers: Sequence[Buffer] = (),
    symbols: Sequence[str] = (),
    name: str = "kernel",
) -> KernelPlan:
    return KernelPlan(
        name=name,
        outer=tuple(outer),
        stages=tuple(Stage(b, len(b.vars) - len(outer)) for b in stages),
        scratch={b.name: b for b in scratch},
        registers=frozenset(b.name for b in registers),
        inputs=tuple(b.name for b in inputs),
        outputs=tuple(b.name for b in outputs),
        symbols=tuple(symbols),
        buffers={b.name: b for b in (*inputs, *outputs, *scratch, *registers)},
    )


def compile_plan(
    made: KernelPlan, simdlen: int = -1, *, isa: toolchain.IsaInfo | None = None, **options: Any
) -> tuple[Callable[..., int], str]:
    """A callable of tensors (inputs, outputs) and sizes, which returns the error flag; and the C++ text."""
    isa = isa or toolchain.isa_for(simdlen)
    source = cpp.generate([made], isa, cpp.CppOptions(simdlen=simdlen, **options))
    library = toolchain.load_text(source.text, isa, name=made.name)
    function = library.function(source.kernel_symbols[made.name])
    flagged = made.name in source.flagged

    def run(tensors: Sequence[torch.Tensor], ints: Sequence[int] = ()) -> int:
        flag = ctypes.c_int32(0)
        addresses = [t.data_ptr() for t in tensors] + ([ctypes.addressof(flag)] if flagged else [])
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        function(ctypes.addressof(pointers), ctypes.addressof((ctypes.c_int64 * max(len(ints), 1))(*ints)))
        return flag.value

    return run, source.text


ORIGIN = Origin("neg", "neg = torch.ops.aten.neg.default(arg0_1)", "model.py:7 in forward: y = -x")


def check(
    made: KernelPlan,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    ints: Sequence[int] = (),
    *,
    rtol: float | None = None,
    atol: float | None = None,
    modes: Sequence[int] = (-1, 0, 128),
) -> str:
    """Compare the compiled kernel, for several vector widths, with the scheduler's reference executor; returns the C++ text.

    Of the widths after the first one is tried, of each kernel another; all with SWEEPS=whole.

    Arguments:
        inputs, outputs: contiguous tensors in argument order; outputs hold what the kernel finds there.
    """
    from argand.schedule.reference import run_kernel

    memory = {name: t.clone().reshape(-1) for name, t in zip(made.inputs + made.outputs, (*inputs, *outputs))}
    run_kernel(made, dict(zip(made.symbols, ints)), memory)
    own, *others = modes
    run, text = compile_plan(made, own)
    if others and not sweeps.WHOLE:
        others = [others[zlib.crc32(text.encode()) % len(others)]]
    for run in (run, *(compile_plan(made, simdlen)[0] for simdlen in others)):
        results = [t.clone() for t in outputs]
        assert run([*inputs, *results], ints) == 0
        for name, result in zip(made.outputs, results):
            expected = memory[name].reshape(result.shape)
            torch.testing.assert_close(result, expected, equal_nan=True, rtol=rtol, atol=atol)
    return text


def sample(size: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values; floats include zeros of both signs, infinities and NaN when there is room."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(tuple(size), generator=generator) < 0.5
    if dtype.is_floating_point:
        found = torch.randn(tuple(size), generator=generator).to(dtype)
        if found.numel() > 40:
            found.reshape(-1)[3:8] = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0]).to(dtype)
        return found
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -1000), min(info.max, 1000), tuple(size), dtype=dtype, generator=generator)
