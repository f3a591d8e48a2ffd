"""From an ATen program to a loaded callable: the stages of the backend "native", in their order.

passes → lower → schedule → C++ or Triton → host module → compile and load. A process whose programs are all stored does
not import this (`backends.stored`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from argand import events
from argand.backends.eager import run_eagerly
from argand.backends.programs import rolling
from argand.backends.programs.like_layers.cutting import cut_layers
from argand.backends.programs.like_layers.layers import Unlike
from argand.backends.programs.like_layers.repeating import with_all_layers
from argand.backends.programs.memo import memo
from argand.backends.programs.preparation import prepare_convolutions
from argand.backends.programs.stored_programs import STAGES
from argand.backends.targets import in_host_memory, target_of, without_gpu_code
from argand.codegen.host import module
from argand.codegen.host.kernels import kernel_source
from argand.codegen.host.module import KernelSource
from argand.codegen.host.products import begin_kernels, choose_products
from argand.config import config
from argand.errors import ArgandError, GpuError, ToolchainError, ToolchainMissing
from argand.graph import product_settings
from argand.graph.nodes.printing import readable
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.hints import size_hints
from argand.ir.kernel import Schedule
from argand.ir.loops import tensor_refs
from argand.lower import lower
from argand.passes import run_passes
from argand.runtime import late_modules
from argand.runtime.host import HostCall, load_module
from argand.runtime.kernels.background_libraries import begin
from argand.schedule.dump import post_fusion_text
from argand.schedule.inplace import write_inputs_in_place
from argand.schedule.pipeline import join_kernels, name_kernels, schedule
from argand.schedule.products.rules import choose_by_rule
from argand.schedule.provenance import code_lines, loop_lines, provenance

Keep = Callable[[str, Mapping[str, torch.Tensor]], None]


def build(program: AtenProgram, *, tuned: bool = False, keep: Keep | None = None) -> HostCall:
    """A callable for the program's graph, as `native.compile_program`.

    Arguments:
        tuned: products may become kernels of argand's, where these are faster.
        keep: gets the host module's text and the tensors that it names, once it was loaded.
    """
    if program.model < 0:
        program.model = events.bus.number("model")
    number = events.bus.number("compiled graph")
    name = f"model__{program.model}_{program.kind}_{number}"
    with events.span("compile_graph", "backend", graph=name, kind=program.kind, number=program.model):
        events.bus.detail("fx_graph", "backend", lambda: readable(program.graph), program=program)
        if in_host_memory(program):
            without_gpu_code(f"{name} runs on the CPU, by kernels whose loops are chosen by rule")
        return _build(program, f"graph_{number}", tuned, keep)


def _build(program: AtenProgram, graph: str, tuned: bool, keep: Keep | None) -> HostCall:
    try:
        if not tuned:
            return _load_later(program, schedule_program(program), graph, keep)
        from argand.backends.autotune import tuned_schedule  # whoever does not ask for it does not pay for it

        schedule = _scheduled(program, by_rule=False)
        chosen, precision = tuned_schedule(schedule)
        _finish(chosen)
        _tell(program, chosen)
        call = _load(chosen, graph)
        return call if precision is None else _with_precision(call, precision, lambda: _load(_finish(schedule), graph))
    except ToolchainError as error:
        return _without_compiler(program, error)
    except torch.OutOfMemoryError as error:
        text = str(error).partition(". ")[0]
        refused = GpuError(f"a graph could not be compiled: {text}", remedy="free memory, or make the batch smaller")
        memo.warn_once(str(refused))
        raise refused from error
    except GpuError as error:
        memo.warn_once(str(error))  # and whoever has the program's own graph runs that
        raise


def _without_compiler(program: AtenProgram, error: ToolchainError) -> HostCall:
    memo.warn_once(str(error))
    reason = "no C++ compiler" if isinstance(error, ToolchainMissing) else error.cause
    events.emit("fallback", "runtime", str(error), backend="native", scope="graph", reason=reason)
    return eager_kernels(program)


def _load_later(program: AtenProgram, schedule: Schedule, graph: str, keep: Keep | None) -> HostCall:
    """`_load`, once the compiler is done, where the scope at hand allows: others work meanwhile."""
    scope = late_modules.scope()
    if scope is None or not in_host_memory(program) or not schedule.kernels():
        return _load(schedule, graph, keep)

    def failed(call: HostCall, error: ArgandError) -> HostCall:
        memo.forget(call)
        if isinstance(error, ToolchainError):
            return _without_compiler(program, error)
        raise error

    sources: list[KernelSource] = []

    def compile_early(kernels: KernelSource) -> None:
        _begin(kernels)
        sources.append(kernels)

    text = host_text(schedule, compile_early)
    (kernels,) = sources
    late = late_modules.LateModule(text, schedule.constants, graph, (kernels.written, kernels.parts), failed)
    scope.modules.append(late)
    if keep is not None:
        keep(text, schedule.constants)
    return late.call


def _load(schedule: Schedule, graph: str, keep: Keep | None = None) -> HostCall:
    text = host_text(schedule, _begin)
    with events.span("load", "runtime"):
        call: HostCall = load_module(text, schedule.constants, graph=graph).call
    if keep is not None:
        keep(text, schedule.constants)
    return call


def _begin(kernels: KernelSource) -> None:
    """The C++ compiler runs while the host module is written, and its text compiled."""
    if kernels.text:
        begin(kernels.written, kernels.parts)


def _with_precision(call: HostCall, precision: str, make: Callable[[], HostCall]) -> HostCall:
    """`call` while the program's setting of float32 products is what its kernels were made for, else ATen's products.

    Arguments:
        make: a callable whose products are ATen's, which heed the setting themselves.
    """
    other = functools.cache(make)
    setting = product_settings.float32_products

    def run(args: list[Any]) -> tuple[Any, ...]:
        return call(args) if setting() == precision else other()(args)

    return run


def schedule_program(program: AtenProgram) -> Schedule:
    """From ATen graph to ordered kernels and extern calls."""
    finished = _finish(_scheduled(program))
    _tell(program, finished)
    return finished


def _finish(schedule: Schedule) -> Schedule:
    """What is done to a schedule last, in place: who computes products, and one launch for small kernels alike."""
    with size_hints(schedule.hints):
        choose_products(schedule)
        if config.fusion:
            join_kernels(schedule)
    return schedule


def _tell(program: AtenProgram, schedule: Schedule) -> None:
    events.emit("ir_post_fusion", "schedule", lambda: post_fusion_text(schedule))
    events.emit("provenance", "schedule", lambda: provenance(program.graph, schedule))
    events.emit(
        "provenance_lines", "schedule", lambda: {"ir_post_fusion": loop_lines(post_fusion_text(schedule), schedule)}
    )
    events.bus.detail("fused_graph", "schedule", None, schedule=schedule)


def _scheduled(program: AtenProgram, *, by_rule: bool = True) -> Schedule:
    """What comes before `_finish`; `by_rule` takes what is faster than ATen's products, by rule."""
    if not program.scalars:  # a program for many sizes is generalised from traces that passes have rewritten
        if not program.rewritten:
            program = with_rolled_loops(program, tells=True)
            with events.span("passes", "passes"):
                program = run_passes(program)
        if program.kind == "inference":
            prepare_convolutions(program)
    events.emit("post_grad_graphs", "passes", lambda: readable(program.graph))
    # What is kept of a base must not be its memory, which tensors that do not know of each other's writes share.
    apart = {p for p, spec in enumerate(program.inputs) if spec.kind == "base" and program.kind == "forward"}
    plain = [m for m in program.mutations if not m.differentiable and m.input not in apart]
    written = [(program.inputs[m.input].name, m.output) for m in plain]
    ordered = _ordered(program)
    with events.span("schedule", "schedule"), size_hints(ordered.hints):
        if write_inputs_in_place(ordered, written):
            name_kernels(ordered)
        ordered.kept = _kept(program, ordered)
        ordered.seen = frozenset(name for i, name in enumerate(ordered.inputs) if i not in program.taken)
        if by_rule:
            choose_by_rule(ordered)
    return ordered


def _ordered(program: AtenProgram) -> Schedule:
    """The loops of a program, in kernels that are in order; those of layers that do the same are made once."""
    cut = None if _is_watched() or program.arrivals else cut_layers(program)
    if cut is not None:
        with contextlib.suppress(Unlike):
            return _ordered_loops(cut.program, functools.partial(with_all_layers, cut=cut))
    return _ordered_loops(program, None)


def _is_watched() -> bool:
    """Whether somebody asks for what becomes of each node."""
    return bool(events.bus.sinks or STAGES & events.bus.named.keys() or config.check_numerics or not config.fusion)


def _ordered_loops(program: AtenProgram, whole: Callable[[Schedule], Schedule] | None) -> Schedule:
    loops = lower(program, targets=target_of)
    begin_kernels(loops)
    loops.arrivals = program.arrivals if whole is None else ()
    loops.mutations = []  # the runtime wrapper writes back into mutated inputs what kernels do not store there
    with events.span("schedule", "schedule"), size_hints(loops.hints):
        return schedule(loops, targets=target_of, fusion=bool(config.fusion), whole=whole)


def with_rolled_loops(program: AtenProgram, *, tells: bool = False) -> AtenProgram:
    """A program with loops for rounds that do the same; `tells` says which."""
    return rolling.with_loops(program, lambda body: _finish(_scheduled(body)), tells=tells)


def _kept(program: AtenProgram, schedule: Schedule) -> frozenset[str]:
    """Buffers that only the backward sees."""
    seen = [out for position, out in enumerate(schedule.outputs) if position not in program.kept]
    rest = [schedule.outputs[position] for position in program.kept]
    return frozenset(ref.buffer for ref in tensor_refs(rest)) - {ref.buffer for ref in tensor_refs(seen)}


def host_text(schedule: Schedule, early: Callable[[KernelSource], object] | None = None) -> str:
    """The host module of a schedule, kernels' source included.

    Arguments:
        early: gets that source, before the rest is written.
    """
    with events.span("codegen", "codegen"), size_hints(schedule.hints):
        kernels = kernel_source(schedule)
        if early is not None and kernels is not None:
            early(kernels)
        text = module.host_module(schedule, kernels)
    events.emit("kernel_code", "codegen", kernels.all_text if kernels is not None else "")
    events.emit("output_code", "codegen", text)
    events.emit("provenance_lines", "codegen", lambda: {"inductor_output_code": code_lines(text, schedule)})
    if config.output_code:
        print(text)
    return text


def eager_kernels(program: AtenProgram) -> HostCall:
    """The program's graph with eager's kernels."""
    run = run_eagerly(program)

    def call(args: list[Any]) -> tuple[Any, ...]:
        results: tuple[Any, ...] = run(*args)
        return results

    return call
