"""What an event says in a log: which logger, which artifact, which level, which text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from argand.debug.log_names import ARTIFACTS
from argand.events import Event
from argand.quick_dataclasses import dataclass

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING

_STAGES = {"backend": "argand.backends"}
"""Loggers of stages whose logger is not called like them."""

STEPS = ("trace_frame", "backend", "compile_graph")
"""Spans whose begin and end are the lines `Step 1`, `Step 2` and `Step 3`."""

_OBJECTS = ("fx_graph", "fused_graph")
"""Events that hand objects to the debug directory."""

_ALREADY_WARNED = ("cache_size_limit", "toolchain_missing")
"""Events that come with a Python warning, which says the same."""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a log; `text` may be many lines.

    Arguments:
        artifact: the artifact that must be on; "" for a line of a component.
    """

    logger: str
    level: int
    text: Callable[[], str]
    artifact: str = ""


CONSEQUENCE = "loop that goes on after a graph break"

Texts = dict[tuple[str, str], Callable[[Event], str]]


def messages(event: Event) -> Iterator[Message]:
    """What an event says: lines of components, and artifacts."""
    for name in ARTIFACTS_OF.get(event.name, ()):
        make = _TEXTS.get((name, event.name)) or _TEXTS.get((name, "")) or Event.text
        artifact = ARTIFACTS[name]
        yield Message(artifact.logger, DEBUG, lambda make=make: make(event), name)  # type: ignore[misc]
    logger = _STAGES.get(event.stage, f"argand.{event.stage}")
    if event.name in ("span_begin", "span_end"):
        yield from _span(event, logger)
    elif event.name == "graph_breaks":
        follows = event.data["reason"].kind == CONSEQUENCE  # of a break that has its own line
        yield Message(logger, INFO if follows else WARNING, lambda: graph_break_line(event))
    elif event.name in ("frame_raised", "fallback"):
        yield Message(logger, INFO, lambda: _said(event))
    elif event.name == "cache":
        yield Message("argand.runtime.cache", DEBUG, lambda: _said(event))
    elif event.name == "symbol":
        yield Message("argand.capture.symbolic", INFO, event.text)
    elif event.name in _OBJECTS:
        return
    elif event.name == "restart":
        yield Message(logger, INFO, lambda: f"Restarting analysis due to {event.text().splitlines()[0]}")
    elif event.name in _ALREADY_WARNED:
        yield Message(logger, INFO, lambda: _said(event))
    elif event.name not in ARTIFACTS_OF:
        yield Message(logger, DEBUG, lambda: _said(event))


def _span(event: Event, logger: str) -> Iterator[Message]:
    name, begins = event.data["span"], event.name == "span_begin"
    if name in STEPS:
        if begins or event.data["ok"] or "outcome" in event.data:
            yield Message(logger, INFO, lambda: _step(event, begins))
        return
    if not begins:
        word = "took" if event.data["ok"] else "failed after"
        yield Message(logger, DEBUG, lambda: f"{name} {word} {event.data['seconds']:.4f} s")


def _step(event: Event, begins: bool) -> str:
    data = event.data
    if data["span"] == "trace_frame":
        if begins:
            return f"Step 1: argand start tracing {data['function']} {data['filename']}:{data['line']}"
        return f"Step 1: argand done tracing {data['function']} ({data.get('outcome', 'done')})"
    if data["span"] == "backend":
        return f"Step 2: {'calling' if begins else 'done'} compiler function {data['backend']}"
    direction = "BACKWARDS" if data["kind"] == "backward" else "FORWARDS"
    return f"Step 3: native {'' if begins else 'done '}compiling {direction} graph {data['number']} ({data['graph']})"


def _said(event: Event) -> str:
    text = event.text()
    details = ", ".join(f"{key}={_short(value)}" for key, value in event.data.items() if str(value) != text)
    if "\n" in text or (text and not details):
        return f"{event.name}: {text}"
    return f"{event.name}: {text} ({details})" if text else f"{event.name}: {details}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", " ")
    return text if len(text) <= 200 else text[:197] + "..."


# ---------------------------------------------------------------------- texts of artifacts


def graph_break_line(event: Event) -> str:
    """A graph break in one line."""
    reason = event.data["reason"]
    place = f" at {reason.where[-1].filename}:{reason.where[-1].lineno}" if reason.where else ""
    verb = "runs eagerly" if event.data.get("frame_skipped") else "graph break"
    return f"argand: {verb} in {event.data['function']}{place}: {reason.headline} (ARGAND_LOGS=graph_breaks shows more)"


def _graph_break(event: Event) -> str:
    reason = event.data["reason"]
    place = f"{reason.where[-1].filename}:{reason.where[-1].lineno}" if reason.where else event.data["function"]
    lines = [f"Graph break in user code at {place}", f"Graph Break Reason: [{reason.id}] {reason.kind}"]
    lines.append(f"  Explanation: {reason.explanation}")
    lines += [f"  Hint: {hint}" for hint in reason.hints]
    lines.append(f"  More: {reason.more}")
    if reason.context:
        lines.append(f"  Developer debug context: {reason.context}")
    if event.data.get("frame_skipped"):
        lines.append(f"  {event.data['function']} runs eagerly; what it calls is still looked at.")
    if reason.where:
        lines += ["User code traceback:", *("  " + str(line).replace("\n", "\n  ") for line in reason.where)]
    return "\n".join(lines)


def _graph(event: Event) -> str:
    return f"TRACED GRAPH\n {event.text()}"


def _graph_code(event: Event) -> str:
    return f"TRACED GRAPH\n ===== {event.data.get('graph_name', 'graph')} =====\n{event.text()}"


def graph_sizes(event: Event) -> str:
    """Sizes of every tensor of a captured graph."""
    lines = ["TRACED GRAPH TENSOR SIZES", f"===== {event.data.get('graph_name', 'graph')} ====="]
    module = event.data["graph"]
    for node in getattr(module, "graph", module).nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(part, "shape"):
                lines.append(f"{node.name}: {tuple(part.shape)}")
    return "\n".join(lines)


def _titled(title: str) -> Callable[[Event], str]:
    return lambda event: f"{title}\n{event.text()}"


def _verbose_recompile(event: Event) -> str:
    recompile = event.data["recompile"]
    lines = [f"Recompiling {recompile.function} ({recompile.filename}:{recompile.lineno}), all guards that failed:"]
    for failure in recompile.failures:
        lines.append(f"  version {failure.version}: {failure}    [{failure.guard}]")
        if failure.where is not None:
            lines.append("    needed by " + str(failure.where).replace("\n", "\n    "))
        lines.append(f"    what to do: {failure.remedy}")
    return "\n".join(lines)


def kernels_only(text: str) -> str:
    """Generated C++ without the prelude that every kernel file begins with."""
    first = text.find('extern "C"')
    if first < 0:
        return text
    comment = text.rfind("\n\n", 0, first)
    return text[comment + 2 if comment >= 0 else first :]


def _after_pass(event: Event) -> str:
    return f"after {event.data['after']} ({event.data['changes']} changes)\n{event.text()}"


def _hint(event: Event) -> str:
    data, reason = event.data, event.text() or event.data.get("reason", "")
    if data.get("scope") in ("sizes", "cudagraphs"):
        return str(reason)
    what = data.get("op") or (f"the {data['scope']}" if "scope" in data else event.stage)
    return f"{what} runs with eager's kernels: {reason}"


def _counts(event: Event) -> str:
    return f"{event.name}: {', '.join(f'{key}={value}' for key, value in event.data.items())}"


def _time(event: Event) -> str:
    return f"{event.data['span']}: {event.data['seconds'] * 1e3:.3f} ms"


def _ddp_graph(event: Event) -> str:
    data = event.data
    what = f"PART {data['child']}" if "child" in data else f"SPLIT INTO {data['parts']} PARTS, ONE A BUCKET"
    return f"DDP GRAPH\n ===== {what} =====\n{event.text()}"


_TEXTS: Texts = {
    ("graph_breaks", ""): _graph_break,
    ("graph", ""): _graph,
    ("graph_code", ""): _graph_code,
    ("graph_sizes", ""): graph_sizes,
    ("recompiles_verbose", ""): _verbose_recompile,
    ("aot_graphs", "aot_inference_graph"): _titled("TRACED GRAPH\n ===== Inference graph ====="),
    ("aot_graphs", "aot_forward_graph"): _titled("TRACED GRAPH\n ===== Forward graph ====="),
    ("aot_graphs", "aot_backward_graph"): _titled("TRACED GRAPH\n ===== Backward graph ====="),
    ("compiled_autograd", ""): _titled("TRACED GRAPH\n ===== Compiled autograd graph ====="),
    ("aot_joint_graph", ""): _titled("TRACED GRAPH\n ===== Joint graph ====="),
    ("pre_grad_graphs", ""): _titled("TRACED GRAPH\n ===== BEFORE PRE GRAD ====="),
    ("post_grad_graphs", ""): _titled("TRACED GRAPH\n ===== AFTER POST GRAD ====="),
    ("ddp_graphs", "optimize_ddp_split_graph"): _ddp_graph,
    ("ddp_graphs", "optimize_ddp_split_child"): _ddp_graph,
    ("graph_code_verbose", ""): _after_pass,
    ("ir_pre_fusion", ""): _titled("BEFORE FUSION"),
    ("ir_post_fusion", ""): _titled("AFTER FUSION"),
    ("output_code", ""): _titled("Output code:"),
    ("kernel_code", ""): lambda event: kernels_only(event.text()),
    ("perf_hints", "fallback"): _hint,
    ("inductor_metrics", ""): _counts,
    ("benchmarking", ""): _time,
    ("caching", ""): _said,
    ("schedule", ""): lambda event: event.text() or _said(event),
    ("fusion", ""): lambda event: event.text() or _said(event),
}  # fmt: skip

ARTIFACTS_OF: dict[str, tuple[str, ...]] = {}
"""Event name -> artifacts that show it."""

for _name, _artifact in ARTIFACTS.items():
    for _event in _artifact.events:
        ARTIFACTS_OF[_event] = (*ARTIFACTS_OF.get(_event, ()), _name)
