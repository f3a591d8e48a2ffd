"""Backend "native": argand's own compiler.

One flat generation, each step a function that can be called alone:
trace (autograd) → passes → lower → schedule → C++ or Triton → host module → compile and load → callable.
What follows tracing is in `generation`, and left out where an earlier process stored its outcome (`stored_programs`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import fx

from argand import events
from argand.backends.common import compile_inference
from argand.backends.compile_watchers import Compiler
from argand.backends.eager_contest import contested, draws, unless_too_small
from argand.backends.programs import stored_programs
from argand.backends.programs.graph_key import graph_key
from argand.backends.programs.memo import memo
from argand.backends.programs.preparation import prepare_joint
from argand.backends.registry import quantization_of
from argand.backends.targets import (
    devices_in,
    in_host_memory,
    problem_of,
    targets_in,
    without_gpu_code,
    without_target,
)
from argand.config import config
from argand.graph import product_settings
from argand.graph.nodes.devices import devices_of
from argand.graph.nodes.module_text import module_text
from argand.graph.nodes.program import AtenProgram
from argand.passes import AT_MANY_SIZES, run_passes
from argand.runtime import cache, toolchain
from argand.runtime.arena import arena_pool, kept_blocks
from argand.runtime.host import HostCall
from argand.runtime.stored_modules import key_of

RECORDED_MODES = ("reduce-overhead", "max-autotune")
UNRECORDED_MODES = ("max-autotune-no-cudagraphs",)
TUNED_MODES = ("max-autotune", "max-autotune-no-cudagraphs")


def native(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a torch-level graph to fused kernels and ATen calls.

    Arguments:
        gm: graph of torch functions and methods.
        example_inputs: one value per placeholder.
        options: `mode`; `options`, of which `never_slower` has a graph that is found to be slower than eager run with
            eager's kernels, `freezing` (by default `config.freezing`) takes parameters and buffers for constants where
            no gradients are recorded, and `quantization` makes integers of 8 bits of the weights of linear layers
            there. Others are accepted for compatibility with other backends.

    A graph with tensors on a device that no code is generated for runs as it is, at eager's speed. So does one that
    cannot be traced, one whose kernels the GPU does not take, and every graph where no C++ compiler is found (the last
    two with one warning). A "fallback" event says why.

    Raises:
        LoweringError, CppCompileError: a stage failed.
    """
    events.emit("pre_grad_graphs", "backend", lambda: module_text(gm))
    devices = devices_of(gm, example_inputs)
    others = without_target(map(torch.device, devices))
    if others:
        _report_devices(others, f"graph of {len(gm.graph.nodes)} nodes")
        return gm.forward
    asked = options.get("options") or {}
    quantization = quantization_of(asked)
    compile_one = functools.partial(compile_program, mode=options.get("mode") or "default")
    frozen: frozenset[int] = frozenset()
    if quantization or asked.get("freezing", config.freezing):
        from argand.backends.programs import freezing  # whoever does not ask for it does not pay for it

        frozen = freezing.constant_arguments(gm, example_inputs)
        wanted = freezing.Wanted(bool(asked.get("freezing", config.freezing)), quantization)
        compile_one = functools.partial(
            freezing.compile_frozen, constant=frozen, compile_program=compile_one, wanted=wanted
        )
    written: list[bool] = []
    calls: list[HostCall | None] = []

    def compile_noted(program: AtenProgram) -> HostCall:
        written.append(program.writes)
        call = compile_one(program)
        calls.append(call if program.kind == "inference" and not draws(program) else None)
        return call

    prepare = functools.partial(run_passes, passes=AT_MANY_SIZES)
    compiler = Compiler(
        "native", compile_noted, boxed=True, prepare=prepare, joint_pass=prepare_joint,
        gives_early=devices == {"cpu"}, passes_early=compile_one.func is compile_program,
    )  # fmt: skip
    compiled = compile_inference(gm, example_inputs, compiler)
    choose = bool(asked.get("never_slower"))
    if not choose and not config.tell_slower:
        return compiled
    if not choose and len(calls) == 1 and calls[0] is not None and not (quantization or frozen):
        key = functools.partial(key_of, calls[0])
        either = unless_too_small(compiled, gm, example_inputs, None, key, written)
        if either is not compiled:
            return either
    return contested(compiled, gm, example_inputs, choose=choose, kept=frozen, written=written)


def compile_program(program: AtenProgram, mode: str = "default") -> HostCall:
    """A callable for the program's graph: takes the list of its inputs (which it empties), returns its outputs.

    Arguments:
        mode: of `argand.compile`. Programs that compute the same share kernels, which are the same in all modes but
            those that time products. What is recorded is the program's own, whose inputs lie elsewhere.
    """
    others = without_target(devices_in(program))
    if others:
        _report_devices(others, f"{program.kind} graph")
        return _eager_kernels(program)
    key = graph_key(program) if config.reuse_graphs else None
    tuned = mode in TUNED_MODES and any(target is not None and target.product_kernels for target in targets_in(program))
    if tuned and key is not None:
        key = f"{key}\ntuned for {product_settings.float32_products()}"
    call = memo.get_or_make(key, lambda: _stored_or_built(program, key, tuned))
    wanted = wants_cuda_graphs(mode)
    if wanted == "no" or (wanted == "auto" and in_host_memory(program)):
        return call
    from argand.backends import cudagraphs  # whoever does not ask for them does not pay for them

    return cudagraphs.with_cuda_graphs(program, call, asked=wanted == "yes")


def wants_cuda_graphs(mode: str) -> Literal["yes", "no", "auto"]:
    """Whether CUDA graphs are asked for, by the mode of `argand.compile` and by the setting; "auto": where they pay."""
    if config.cpp.enable_kernel_profile or config.check_numerics:  # which look at each kernel by itself
        without_gpu_code("kernels are profiled or checked one by one")
        return "no"
    if config.triton.cudagraphs is not None:
        return "yes" if config.triton.cudagraphs else "no"
    return "yes" if mode in RECORDED_MODES else "no" if mode in UNRECORDED_MODES else "auto"


def _stored_or_built(program: AtenProgram, key: str | None, tuned: bool) -> HostCall:
    """What an earlier process made of an equal program, else what the generation makes.

    Products that are timed (`tuned`) are timed by each process: what is faster depends on what else the machine does.
    """
    entry = stored_programs.entry_for(program, None if tuned else key)
    call = entry.load(program)
    if call is None:
        from argand.backends.programs import generation

        with entry.recording():
            call = entry.marked(generation.build(program, tuned=tuned, keep=entry.keep), program.kind)
    return call


def _eager_kernels(program: AtenProgram) -> HostCall:
    from argand.backends.programs import generation

    return generation.eager_kernels(program)


def _report_devices(others: set[str], what: str) -> None:
    reason = f"no code is generated for tensors on {' and '.join(sorted(others))}"
    if "cuda" in others:  # somebody expects it, and can do something about it
        reason += f": {problem_of(torch.device('cuda'))}"
        memo.warn_once(reason)
    events.emit("fallback", "backend", reason, backend="native", scope="graph", reason=reason)
    without_gpu_code(f"this {what} runs with eager's kernels: {reason}")


def reset() -> None:
    """Forget compiled graphs and free the memory kept for temporaries."""
    from argand.runtime.gpu.device import arena as device_arena

    cache.reset()
    toolchain.reset()
    memo.clear()
    arena_pool.clear()
    kept_blocks.clear()
    device_arena.clear()
