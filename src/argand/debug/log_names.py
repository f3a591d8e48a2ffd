"""What can be switched on in logs: components (loggers with levels) and artifacts (texts that a stage made).

The names are those of `TORCH_LOGS`; what has another name here is an alias of it.
"""

from __future__ import annotations

from argand.quick_dataclasses import dataclass

ROOT = "argand"

NATIVE = (
    "argand.backends",
    "argand.passes",
    "argand.lower",
    "argand.schedule",
    "argand.codegen",
    "argand.runtime",
)
"""Loggers of the native backend, from the graph that it gets to the kernels that it loads."""


@dataclass(frozen=True, slots=True)
class Component:
    """A part of argand whose logger has a level.

    Arguments:
        loggers: their names; empty for a part that torch.compile has and argand has not: accepted, nothing to log.
        help: one sentence.
    """

    loggers: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A text that a stage makes.

    Arguments:
        logger: the component's logger that it belongs to.
        help: one sentence; for one without `events`, what to look at instead.
        events: names of the events that carry it; empty for one of torch.compile's that argand never makes.
        asked: shown only when asked for by name, not with its component's debug level.
    """

    logger: str
    help: str
    events: tuple[str, ...]
    asked: bool = False


_CAPTURE, _AUTOGRAD = "argand.capture", "argand.autograd"
_NOT_HERE = "A part of torch.compile that argand has not; accepted, logs nothing."

COMPONENTS: dict[str, Component] = {
    "all": Component((ROOT,), "Everything."),
    "dynamo": Component((_CAPTURE,), "Capture: bytecode to graph."),
    "aot": Component((_AUTOGRAD,), "Tracing to ATen graphs, with gradients."),
    "inductor": Component(NATIVE, "The native backend: passes, lowering, scheduling, code, toolchain."),
    "dynamic": Component(("argand.capture.symbolic",), "Sizes that become symbolic, and what is assumed of them."),
    "passes": Component(("argand.passes",), "Rewrites of the ATen graph."),
    "lower": Component(("argand.lower",), "ATen graph to loops."),
    "codegen": Component(("argand.codegen",), "Writing kernels and host module."),
    "runtime": Component(("argand.runtime",), "Compiling, caching and loading kernels."),
    "cache": Component(("argand.runtime.cache",), "Kernels found on disk, or not."),
    "async_compile": Component(("argand.runtime.toolchain",), "The C++ compiler's runs."),
    "distributed": Component((), _NOT_HERE),
    "c10d": Component((), _NOT_HERE),
    "ddp": Component(("argand.backends.in_parts",), "Graphs under DistributedDataParallel, cut where buckets end."),
    "pp": Component((), _NOT_HERE),
    "fsdp": Component((), _NOT_HERE),
    "dtensor": Component((), _NOT_HERE),
    "onnx": Component((), _NOT_HERE),
    "export": Component((), _NOT_HERE),
    "fake_tensor": Component((), _NOT_HERE),
    "native_dsl": Component((), _NOT_HERE),
}

ALIASES = {
    "capture": "dynamo",
    "autograd": "aot",
    "native": "inductor",
    "torch": "all",
    "argand": "all",
}
"""Further names of components."""

ARTIFACTS: dict[str, Artifact] = {
    "graph_breaks": Artifact(_CAPTURE, "Why a graph ended: reason, hints, the program's line.", ("graph_breaks",)),
    "recompiles": Artifact(_CAPTURE, "Which guard failed before code was compiled again.", ("recompiles",)),
    "recompiles_verbose": Artifact(
        _CAPTURE, "Every guard that failed, of every compiled version.", ("recompiles",), asked=True
    ),
    "guards": Artifact(_CAPTURE, "What compiled code relies on.", ("guards",)),
    "verbose_guards": Artifact(
        _CAPTURE, "What compiled code relies on, and the program's line that made it.", ("verbose_guards",), asked=True
    ),
    "bytecode": Artifact(_CAPTURE, "Original and modified bytecode.", ("bytecode",)),
    "graph": Artifact(_CAPTURE, "The captured graph, as a table.", ("graph",)),
    "graph_code": Artifact(_CAPTURE, "The captured graph, as Python.", ("graph_code",)),
    "graph_sizes": Artifact(_CAPTURE, "Sizes of every value of the captured graph.", ("graph",)),
    "trace_source": Artifact(_CAPTURE, "The program's lines, as they are interpreted.", ("trace_source",)),
    "trace_call": Artifact(_CAPTURE, "Each operation put into the graph, and its place.", ("trace_call",)),
    "trace_bytecode": Artifact(_CAPTURE, "Each instruction interpreted, and the stack.", ("trace_bytecode",)),
    "side_effects": Artifact(_CAPTURE, "What compiled code writes to the program's objects.", ("side_effects",)),
    "sym_node": Artifact(
        "argand.capture.symbolic", "Decisions that a captured program makes about sizes.", ("symbol_guard",)
    ),
    "aot_graphs": Artifact(
        _AUTOGRAD,
        "The ATen graphs: of inference, or of forward and backward.",
        ("aot_inference_graph", "aot_forward_graph", "aot_backward_graph"),
    ),
    "aot_joint_graph": Artifact(_AUTOGRAD, "Forward and backward as one graph, before the cut.", ("aot_joint_graph",)),
    "aot_forward_graph_fw_metadata": Artifact(
        _AUTOGRAD, "Inputs, results and kept values of a forward.", ("aot_forward_graph_fw_metadata",), asked=True
    ),
    "pre_grad_graphs": Artifact("argand.backends", "The graph that the native backend got.", ("pre_grad_graphs",)),
    "ranks": Artifact(
        "argand.debug.ranks",
        "What ranks compile differently (config.check_ranks).",
        ("rank_difference", "rank_check"),
    ),
    "compiled_autograd": Artifact(
        "argand.engine", "Backwards that compiled autograd recorded.", ("compiled_autograd_graph",)
    ),
    "ddp_graphs": Artifact(
        "argand.backends.in_parts",
        "A graph under DistributedDataParallel as parts, one a bucket of gradients; or why it stays whole.",
        ("optimize_ddp_split_graph", "optimize_ddp_split_child", "optimize_ddp"),
    ),
    "graph_code_verbose": Artifact(
        "argand.passes", "The ATen graph after each pass that changed it.", ("aten_graph_after_pass",), asked=True
    ),
    "post_grad_graphs": Artifact("argand.passes", "The ATen graph after all passes.", ("post_grad_graphs",)),
    "ir_pre_fusion": Artifact("argand.lower", "Loops before fusion.", ("ir_pre_fusion",)),
    "ir_post_fusion": Artifact("argand.schedule", "Kernels after fusion.", ("ir_post_fusion",)),
    "schedule": Artifact("argand.schedule", "Kernels and calls in the order in which they run.", ("schedule",)),
    "fusion": Artifact("argand.schedule", "Which loops were put into one kernel.", ("fusion",)),
    "compute_dependencies": Artifact(
        "argand.schedule", "What each loop reads and writes.", ("compute_dependencies",), asked=True
    ),
    "output_code": Artifact("argand.codegen", "The whole generated program.", ("output_code",)),
    "kernel_code": Artifact("argand.codegen", "The generated C++ of all kernels.", ("kernel_code",)),
    "perf_hints": Artifact(
        "argand.backends", "What runs slower than it could, and why.", ("fallback", "slower"), asked=True
    ),
    "inductor_metrics": Artifact(
        "argand.schedule", "Counts of a compiled graph: loops, kernels, calls.", ("schedule", "fusion"), asked=True
    ),
    "benchmarking": Artifact("argand.runtime", "The time of every stage.", ("span_end",), asked=True),
    "caching": Artifact(
        "argand.runtime.cache", "Kernels and graphs found, or made.", ("cache", "remote_cache"), asked=True
    ),
    "cudagraphs": Artifact(
        "argand.backends", "Whether a CUDA graph was recorded, and why not.", ("cudagraphs",), asked=True
    ),
    "quantization": Artifact(
        "argand.passes", "Which products got weights of 8 bits, and why others did not.", ("quantization",)
    ),
    "autotuning": Artifact("argand.backends", "Candidates that were timed, and why none.", ("autotuning",), asked=True),
}

_ONLY_TORCH = (
    "annotation", "aot_graphs_effects", "auto_chunker", "compiled_autograd_verbose", "cudagraph_static_inputs",
    "graph_region_expansion", "hierarchical_compile", "incremental", "loop_ordering", "loop_tiling",
    "node_runtime_estimation", "not_implemented", "onnx_diagnostics", "overlap", "overlap_scheduling",
    "trace_shape_events",
)  # fmt: skip
ARTIFACTS.update({name: Artifact(_CAPTURE, _NOT_HERE, (), asked=True) for name in _ONLY_TORCH})


def component(name: str) -> Component | None:
    """A component by any of its names, `dynamo/capture` included; None when it is none."""
    parts = {ALIASES.get(part, part) for part in name.split("/")}
    return COMPONENTS.get(parts.pop()) if len(parts) == 1 else None


def help_text(everything: bool = False) -> str:
    """What `ARGAND_LOGS=help` prints.

    Arguments:
        everything: the names that log nothing here too.
    """
    aliases: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    lines = [
        "ARGAND_LOGS takes names, separated by commas.",
        "",
        "Components, with a level: `name` is INFO, `+name` DEBUG, `-name` ERROR. argand.set_logs(name=logging.INFO).",
        "Any module of argand's is one too (`+argand.lower`).",
    ]
    for name, part in COMPONENTS.items():
        if everything or part.loggers:
            lines.append(f"  {'/'.join([name, *aliases.get(name, ())]):28s} {part.help}")
    lines += ["", "Artifacts, on or off. argand.set_logs(name=True)."]
    for name, artifact in ARTIFACTS.items():
        if everything or artifact.events:
            lines.append(f"  {name:28s} {artifact.help}")
    if not everything:
        lines += ["", "ARGAND_LOGS=+help lists the names of torch.compile's that are accepted and log nothing too."]
    lines += [
        "",
        'Examples: ARGAND_LOGS="+dynamo" | ARGAND_LOGS="graph_breaks,recompiles" | ARGAND_LOGS="aot,-inductor,graph"',
        "ARGAND_LOGS_OUT=file writes them to a file too. Without these, TORCH_LOGS and TORCH_LOGS_OUT are read.",
    ]
    return "\n".join(lines)
