"""Backend "native": argand's own compiler.

One flat pipeline, each step a function that can be called alone:
trace (autograd) → passes → lower → schedule → C++ or Triton → host module → compile and load → callable.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import fx

from argand import events
from argand.backends.aot_eager import run_eagerly
from argand.backends.common import compile_inference
from argand.backends.graph_key import graph_key
from argand.backends.targets import devices_in, problem_of, target_of, without_target
from argand.codegen.host import module
from argand.codegen.host.kernels import kernel_source
from argand.codegen.host.products import choose_products
from argand.config import config
from argand.errors import GpuError, ToolchainError, ToolchainMissing
from argand.graph import compat
from argand.graph.nodes.devices import devices_of
from argand.graph.nodes.module_text import module_text
from argand.graph.nodes.printing import readable
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.hints import size_hints
from argand.ir.kernel import Schedule
from argand.ir.loops import tensor_refs
from argand.ir.target import Target
from argand.lower import lower
from argand.passes import joint, run_passes
from argand.passes.channels_last import convolutions
from argand.passes.convolution_biases import part_biases
from argand.runtime import cache, toolchain
from argand.runtime.arena import arena_pool
from argand.runtime.host import HostCall, load_module
from argand.schedule.dump import post_fusion_text
from argand.schedule.inplace import write_inputs_in_place
from argand.schedule.pipeline import join_kernels, schedule
from argand.schedule.products.rules import choose_by_rule
from argand.schedule.provenance import code_lines, loop_lines, provenance

RECORDED_MODES = ("reduce-overhead", "max-autotune")
UNRECORDED_MODES = ("max-autotune-no-cudagraphs",)
TUNED_MODES = ("max-autotune", "max-autotune-no-cudagraphs")


def native(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a torch-level graph to fused kernels and ATen calls.

    Arguments:
        gm: graph of torch functions and methods.
        example_inputs: one value per placeholder.
        options: `mode`; others are accepted for compatibility with other backends.

    A graph with tensors on a device that no code is generated for runs as it is, at eager's speed. So does one that
    cannot be traced, one whose kernels the GPU does not take, and every graph where no C++ compiler is found (the last
    two with one warning). A "fallback" event says why.

    Raises:
        LoweringError, CppCompileError: a stage failed.
    """
    events.emit("pre_grad_graphs", "backend", lambda: module_text(gm))
    others = without_target(map(torch.device, devices_of(gm, example_inputs)))
    if others:
        _report_devices(others, f"graph of {len(gm.graph.nodes)} nodes")
        return gm.forward
    return compile_inference(
        gm,
        example_inputs,
        functools.partial(compile_program, mode=options.get("mode") or "default"),
        backend="native",
        boxed=True,
        prepare=run_passes,
        joint_pass=_prepare_joint,
    )


def _prepare_joint(program: AtenProgram) -> None:
    """Rewrite a graph of forward and backward, before it is cut in two."""
    joint.prepare_joint(program)
    _prepare_convolutions(program)


def _prepare_convolutions(program: AtenProgram) -> None:
    """Without their biases and laid out anew, where that is faster on the program's devices."""
    targets = [target for target in _targets(program) if target is not None]
    if any(target.parts_biases for target in targets):
        part_biases(program, _parts_biases)
    timed = any(target.times_layouts for target in targets)
    if timed and convolutions(program):
        joint.open_group_norms(program)
    if timed or (any(target.depthwise_innermost for target in targets) and _has_groups(program)):
        from argand.backends.layouts import choose_layouts  # graphs of CPUs do not wait for its imports

        choose_layouts(program)


def _parts_biases(device: torch.device) -> bool:
    target = target_of(device)
    return target is not None and target.parts_biases


def _has_groups(program: AtenProgram) -> bool:
    convolution = torch.ops.aten.convolution.default
    return any(node.target is convolution and node.args[8] > 1 for node in program.graph.nodes)


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
    if mode in TUNED_MODES and any(target is not None and target.product_kernels for target in _targets(program)):
        key = f"{key}\ntuned for {compat.float32_products()}" if key is not None else None
        call = _memo.get_or_make(key, lambda: build(program, tuned=True))
    else:
        call = _memo.get_or_make(key, lambda: build(program))
    wanted = wants_cuda_graphs(mode)
    if wanted == "no" or (wanted == "auto" and _in_host_memory(program)):
        return call
    from argand.backends import cudagraphs  # whoever does not ask for them does not pay for them

    return cudagraphs.with_cuda_graphs(program, call, asked=wanted == "yes")


def wants_cuda_graphs(mode: str) -> Literal["yes", "no", "auto"]:
    """Whether CUDA graphs are asked for, by the mode of `argand.compile` and by the setting; "auto": where they pay."""
    if config.cpp.enable_kernel_profile or config.check_numerics:  # which look at each kernel by itself
        _without_gpu_code("kernels are profiled or checked one by one")
        return "no"
    if config.triton.cudagraphs is not None:
        return "yes" if config.triton.cudagraphs else "no"
    return "yes" if mode in RECORDED_MODES else "no" if mode in UNRECORDED_MODES else "auto"


def _in_host_memory(program: AtenProgram) -> bool:
    return all(target is None or target.host_memory for target in _targets(program))


def _report_devices(others: set[str], what: str) -> None:
    reason = f"no code is generated for tensors on {' and '.join(sorted(others))}"
    if "cuda" in others:  # somebody expects it, and can do something about it
        reason += f": {problem_of(torch.device('cuda'))}"
        _memo.warn_once(reason)
    events.emit("fallback", "backend", reason, backend="native", scope="graph", reason=reason)
    _without_gpu_code(f"this {what} runs with eager's kernels: {reason}")


def build(program: AtenProgram, *, tuned: bool = False) -> HostCall:
    """The pipeline: step 3.

    Arguments:
        tuned: products may become kernels of argand's, where these are faster.
    """
    if program.model < 0:
        program.model = events.bus.number("model")
    number = events.bus.number("compiled graph")
    name = f"model__{program.model}_{program.kind}_{number}"
    with events.span("compile_graph", "backend", graph=name, kind=program.kind, number=program.model):
        events.bus.detail("fx_graph", "backend", lambda: readable(program.graph), program=program)
        if _in_host_memory(program):
            _without_gpu_code(f"{name} runs on the CPU, by kernels whose loops are chosen by rule")
        return _build(program, f"graph_{number}", tuned)


def _targets(program: AtenProgram) -> list[Target | None]:
    return [target_of(device) for device in devices_in(program)]


def _without_gpu_code(why: str) -> None:
    """Answer who asked for the logs of what only GPU code has."""
    events.bus.detail("cudagraphs", "backend", f"no CUDA graph is recorded: {why}")
    events.bus.detail("autotuning", "backend", f"no candidates are timed: {why}")


def _build(program: AtenProgram, graph: str, tuned: bool) -> HostCall:
    try:
        if not tuned:
            return _load(schedule_program(program), graph)
        from argand.backends.autotune import tuned_schedule  # whoever does not ask for it does not pay for it

        schedule = _scheduled(program, by_rule=False)
        made, precision = tuned_schedule(schedule)
        _finish(made)
        _tell(program, made)
        call = _load(made, graph)
        return call if precision is None else _with_precision(call, precision, lambda: _load(_finish(schedule), graph))
    except ToolchainError as error:
        _memo.warn_once(str(error))
        reason = "no C++ compiler" if isinstance(error, ToolchainMissing) else error.cause
        events.emit("fallback", "runtime", str(error), backend="native", scope="graph", reason=reason)
        return _eager_kernels(program)
    except torch.OutOfMemoryError as error:
        text = str(error).partition(". ")[0]
        refused = GpuError(f"a graph could not be compiled: {text}", remedy="free memory, or make the batch smaller")
        _memo.warn_once(str(refused))
        raise refused from error
    except GpuError as error:
        _memo.warn_once(str(error))  # and whoever has the program's own graph runs that
        raise


def _load(schedule: Schedule, graph: str) -> HostCall:
    text = host_text(schedule)
    with events.span("load", "runtime"):
        return load_module(text, schedule.constants, graph=graph).call


def _with_precision(call: HostCall, precision: str, make: Callable[[], HostCall]) -> HostCall:
    """`call` while the program's setting of float32 products is what its kernels were made for, else ATen's products.

    Arguments:
        make: a callable whose products are ATen's, which heed the setting themselves.
    """
    other = functools.cache(make)
    setting = compat.float32_products

    def run(args: list[Any]) -> tuple[Any, ...]:
        return call(args) if setting() == precision else other()(args)

    return run


def schedule_program(program: AtenProgram) -> Schedule:
    """From ATen graph to ordered kernels and extern calls."""
    made = _finish(_scheduled(program))
    _tell(program, made)
    return made


def _finish(made: Schedule) -> Schedule:
    """What is done to a schedule last, in place: who computes products, and one launch for small kernels alike."""
    with size_hints(made.hints):
        choose_products(made)
        if config.fusion:
            join_kernels(made)
    return made


def _tell(program: AtenProgram, made: Schedule) -> None:
    events.emit("ir_post_fusion", "schedule", lambda: post_fusion_text(made))
    events.emit("provenance", "schedule", lambda: provenance(program.graph, made))
    events.emit("provenance_lines", "schedule", lambda: {"ir_post_fusion": loop_lines(post_fusion_text(made), made)})
    events.bus.detail("fused_graph", "schedule", None, schedule=made)


def _scheduled(program: AtenProgram, *, by_rule: bool = True) -> Schedule:
    """What comes before `_finish`; `by_rule` takes what is faster than ATen's products, by rule."""
    if not program.scalars:  # a program for many sizes is generalised from traces that passes have rewritten
        with events.span("passes", "passes"):
            program = run_passes(program)
        if program.kind == "inference":
            _prepare_convolutions(program)
    events.emit("post_grad_graphs", "passes", lambda: readable(program.graph))
    loops = lower(program, targets=target_of)
    loops.mutations = []  # the runtime wrapper writes back into mutated inputs what kernels do not store there
    # What is kept of a base must not be its memory, which tensors that do not know of each other's writes share.
    apart = {p for p, spec in enumerate(program.inputs) if spec.kind == "base" and program.kind == "forward"}
    plain = [m for m in program.mutations if not m.differentiable and m.input not in apart]
    written = [(program.inputs[m.input].name, m.output) for m in plain]
    with events.span("schedule", "schedule"), size_hints(loops.hints):
        made = schedule(loops, targets=target_of, fusion=bool(config.fusion))
        write_inputs_in_place(made, written)
        made.kept = _kept(program, made)
        if by_rule:
            choose_by_rule(made)
    return made


def _kept(program: AtenProgram, made: Schedule) -> frozenset[str]:
    """Buffers that only the backward sees."""
    seen = [out for position, out in enumerate(made.outputs) if position not in program.kept]
    rest = [made.outputs[position] for position in program.kept]
    return frozenset(ref.buffer for ref in tensor_refs(rest)) - {ref.buffer for ref in tensor_refs(seen)}


def host_text(schedule: Schedule) -> str:
    """The host module of a schedule, kernels' source included."""
    with events.span("codegen", "codegen"), size_hints(schedule.hints):
        kernels = kernel_source(schedule)
        text = module.host_module(schedule, kernels)
    events.emit("kernel_code", "codegen", kernels.all_text if kernels is not None else "")
    events.emit("output_code", "codegen", text)
    events.emit("provenance_lines", "codegen", lambda: {"inductor_output_code": code_lines(text, schedule)})
    if config.output_code:
        print(text)
    return text


def _eager_kernels(program: AtenProgram) -> HostCall:
    run = run_eagerly(program)

    def call(args: list[Any]) -> tuple[Any, ...]:
        found: tuple[Any, ...] = run(*args)
        return found

    return call


class _Memo:
    """Compiled graphs of this process, by what they compute; and which warnings were given."""

    def __init__(self) -> None:
        self._made: dict[str, HostCall] = {}
        self._warned = False

    def get_or_make(self, key: str | None, make: Callable[[], HostCall]) -> HostCall:
        """What `make` returned the first time that `key` was asked for; None is never shared."""
        if key is None:
            return make()
        found = self._made.get(key)
        if found is not None:
            events.emit("cache", "backend", None, outcome="hit", key=key, level="graph")
        else:
            found = self._made.setdefault(key, make())
        return found

    def warn_once(self, text: str) -> None:
        """Warn that no kernels can be built, the first time: the next graph will hardly fare better."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"argand: {text}\nGraphs run with eager's kernels.", stacklevel=2)

    def clear(self) -> None:
        """Forget everything (argand.reset)."""
        self._made.clear()
        self._warned = False


_memo = _Memo()


def reset() -> None:
    """Forget compiled graphs and free the memory kept for temporaries."""
    from argand.runtime.gpu.device import arena as device_arena

    cache.reset()
    toolchain.reset()
    _memo.clear()
    arena_pool.clear()
    device_arena.clear()
