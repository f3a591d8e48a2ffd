"""The structured trace: turns events into records that `argand report` and torch's `tlparse` read.

Records that torch.compile writes too have torch's names and meanings; everything else is an `artifact` that keeps the
name which its event has everywhere. docs/trace.md lists them.
"""

from __future__ import annotations

import itertools
import linecache
import platform
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argand.events import CompileId, Event
from argand.graph.nodes.module_text import module_text
from argand.report.chromium import chrome_event
from argand.report.metrics import ROOTS, Collector, CompilationMetrics
from argand.report.records import digest_of
from argand.report.tracefile import TraceFile, to_json
from argand.version import __version__

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]+")


class TraceSink:
    """Writes a structured trace of this process into a directory.

    Arguments:
        directory: made when it is missing; each process and rank has its own file in it.
    """

    def __init__(self, directory: Path) -> None:
        self.file = TraceFile(directory)
        self._collector = Collector(self._metrics)
        self._introduced: Path | None = None
        self._said: dict[tuple[int | None, int | None], str] = {}

    def __call__(self, event: Event) -> None:
        if self.file.dead:
            return
        where = _emitter()
        if self.file.path is None or self.file.path is not self._introduced:
            self._introduce(event, where)
        try:
            if event.name == "span_end" and not event.data["ok"]:
                self._failed(event, where)
            self._collector(event)
            chrome = chrome_event(event)
            if chrome is not None:
                self.put(event, "chromium_event", {}, _pretty(chrome), where)
            hear = _RECORDS.get(event.name)
            if hear is not None:
                hear(self, event, where)
            elif event.name not in _SILENT and event.payload is not None:
                self.artifact(event, event.name, event.text(), where)
        except Exception as error:  # a payload that cannot be made is no reason to end the trace
            self.artifact(event, f"{event.name}_failed", f"{type(error).__name__}: {error}", where)

    def _introduce(self, event: Event, where: tuple[str, int]) -> None:
        """What every file begins with."""
        torch = sys.modules.get("torch")
        facts = {
            "argand": __version__,
            "torch": str(getattr(torch, "__version__", "")),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        self.artifact(event, "argand_version", to_json(facts).decode(), where, "json")
        self._introduced = self.file.path

    def put(self, event: Event, kind: str, fields: Any, payload: str | None, where: tuple[str, int]) -> None:
        """Write a record of `event`."""
        self.file.write(kind, fields, event.compile_id, payload=payload, time_ns=event.time_ns, where=where)

    def artifact(self, event: Event, name: str, text: str, where: tuple[str, int], encoding: str = "string") -> None:
        """Write an artifact record; `encoding` is "string" or "json"."""
        name = _UNSAFE.sub("_", name)[:200] or "artifact"
        self.put(event, "artifact", {"name": name, "encoding": encoding}, text, where)

    def _failed(self, event: Event, where: tuple[str, int]) -> None:
        """What a compile ended with that came to nothing."""
        error = sys.exception()
        if event.data["span"] in ROOTS and error is not None:
            text = f"{type(error).__name__}: {error}\n\n" + "".join(traceback.format_exception(error))
            self.artifact(event, "dynamo_error", text, where)

    def break_reason(self, event: Event, where: tuple[str, int]) -> None:
        """Write why a graph ended, once a compile: the attempt that met it says so, and the one that kept the break."""
        text, one = event.text(), event.compile_id
        key = (one.frame, one.recompile) if one is not None else (-1, -1)
        if self._said.get(key) != text:
            self._said[key] = text
            self.artifact(event, "dynamo_graph_break_reason", text, where)

    def _metrics(self, metrics: CompilationMetrics, compile_id: CompileId) -> None:
        kind = "compilation_metrics" if metrics.is_forward else "bwd_compilation_metrics"
        self._said.pop((compile_id.frame, compile_id.recompile), None)
        self.file.write(kind, metrics.as_dict(), compile_id, where=_emitter())

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _emitter() -> tuple[str, int]:
    """argand's source line that emitted the event which is being delivered."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            short = name[len(_PACKAGE) :].replace("\\", "/")
            if not short.endswith("/events.py") and not short.startswith("/report/"):
                return f"argand{short}", frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "argand/events.py", 0


def _pretty(value: Any) -> str:
    import orjson

    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()
    except (TypeError, ValueError):
        return to_json(value).decode()


# ---------------------------------------------------------------------- event -> record

_Hear = Callable[[TraceSink, Event, tuple[str, int]], None]


def _frame_start(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    frames = event.payload()
    stack = sink.file.stack(frames)
    for caller, (filename, line, _) in zip(stack[:-1], frames):  # the last is the function itself: it has no line yet
        if text := linecache.getline(filename, line).strip():
            caller["loc"] = text[:500]
    sink.put(event, "dynamo_start", {"stack": stack}, None, where)


def _graph(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    graph = event.data.get("graph")
    if graph is None:
        sink.artifact(event, "graph", event.text(), where)
        return
    text = module_text(graph)
    sink.put(event, "dynamo_output_graph", {"sizes": _sizes(graph)}, text, where)


def _sizes(graph: Any) -> dict[str, list[Any]]:
    sizes = {}
    for node in graph.graph.nodes:
        for key in ("example_value", "val"):
            shape = getattr(node.meta.get(key), "shape", None)
            if shape is not None:
                sizes[node.name] = [size if type(size) is int else str(size) for size in shape]
                break
    return sizes


def _plain(kind: str) -> _Hear:
    """A record without fields."""
    return lambda sink, event, where: sink.put(event, kind, {}, event.text(), where)


def _named(name: str) -> _Hear:
    """An artifact that torch gives another name than ours."""
    return lambda sink, event, where: sink.artifact(event, name, event.text(), where)


def _output_code(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    text = event.text()
    name = str(event.data.get("path") or f"{digest_of(text.encode('utf-8', 'replace'))}.py")
    sink.put(event, "inductor_output_code", {"filename": name, "file_path": name}, text, where)


def _guards(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    listed = []
    for guard, place in itertools.zip_longest(event.data.get("guards", ()), event.data.get("places", ())):
        told: dict[str, Any] = {"code": str(guard)}
        if place is not None:
            frames = sink.file.stack([(place.filename, place.lineno, place.function)])
            told["user_stack"] = [{**frames[0], "loc": place.text}]
        listed.append(told)
    sink.put(event, "dynamo_guards", {}, _pretty(listed), where)
    sink.put(event, "dynamo_cpp_guards_str", {}, event.text(), where)


def _captured(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    one = event.compile_id
    first = None if one is None else CompileId(one.frame, one.recompile)  # where tlparse's metrics page looks for them
    for condition in event.data.get("conditions", ()):
        fields = {"expr": condition, "user_stack": [], "stack": []}
        sink.file.write("guard_added_fast", fields, first, time_ns=event.time_ns, where=where)


def _graph_break(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    sink.break_reason(event, where)
    reason = event.data.get("reason")
    if reason is None:
        return
    told = {
        "id": reason.id,
        "kind": reason.kind,
        "explanation": reason.explanation,
        "context": reason.context,
        "remedies": list(reason.hints),
        "stack": [_user_line(line) for line in reason.where],
        "function": event.data.get("function", ""),
        "frame_skipped": bool(event.data.get("frame_skipped")),
    }
    sink.artifact(event, "graph_breaks", _pretty(told), where, "json")


def _user_line(line: Any) -> dict[str, Any]:
    told = {"filename": line.filename, "line": line.lineno, "name": line.function, "source": line.text}
    return told | ({"start": line.start, "end": line.end} if line.start >= 0 else {})


def _restart(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    reason = event.data.get("reason")
    told: dict[str, Any] = {"next_attempt": event.data.get("next"), "reason": event.text()}
    if reason is not None:
        sink.break_reason(event, where)
        told["stack"] = [_user_line(line) for line in reason.where]
    sink.artifact(event, "restart", _pretty(told), where, "json")


def _recompiles(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    recompile = event.data.get("recompile")
    reasons = event.data.get("reasons") or [event.text()]
    sink.artifact(event, "recompile_reasons", _pretty([str(reason) for reason in reasons]), where, "json")
    if recompile is not None:
        sink.artifact(event, event.name, _pretty(recompile.as_dict()), where, "json")


def _cache(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    outcome = event.data.get("outcome")
    state = outcome if outcome in ("hit", "miss") else "bypass"
    told = {"key": event.data.get("key"), "cache_state": state, **event.data}
    if text := event.text():
        told["cache_bypass_reason"] = text
    sink.artifact(event, f"fx_graph_cache_{state}", _pretty(told), where, "json")


def _told(*more: str) -> _Hear:
    """An artifact of what the event says, and more of it: "stage", "text"."""

    def hear(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
        told = {**event.data, **{name: event.stage if name == "stage" else event.text() for name in more}}
        sink.artifact(event, event.name, _pretty(told), where, "json")

    return hear


def _provenance(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    """argand's own tables, and the same as torch names them, for `tlparse --inductor-provenance`."""
    told = event.payload()
    sink.artifact(event, "provenance", _pretty(told), where, "json")
    called = {**told["kernels"], **told["extern"]}
    to_post = {kernel: [row["node"] for row in rows] for kernel, rows in called.items()}
    tables = {
        "preToPost": told["pre_to_post"],
        "postToPre": _turned(told["pre_to_post"]),
        "cppCodeToPost": to_post,
        "postToCppCode": _turned(to_post),
        "version": 2.0,
    }
    sink.artifact(event, "inductor_provenance_tracking_node_mappings", _pretty(tables), where, "json")
    lines = {kernel: list(dict.fromkeys(row["user_line"] for row in rows)) for kernel, rows in called.items()}
    sink.artifact(event, "inductor_provenance_tracking_kernel_stack_traces", _pretty(lines), where, "json")


def _provenance_lines(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    """Artifact -> line -> the nodes that it stands for."""
    sink.artifact(event, "provenance_lines", to_json(event.payload()).decode(), where, "json")


def _turned(table: dict[str, list[str]]) -> dict[str, list[str]]:
    """The table read the other way round."""
    inverse: dict[str, list[str]] = {}
    for key, values in table.items():
        for value in values:
            inverse.setdefault(value, []).append(key)
    return inverse


def _after_pass(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    sink.artifact(event, f"aten_graph_after_{event.data['after']}", event.text(), where)


def _split_child(sink: TraceSink, event: Event, where: tuple[str, int]) -> None:
    sink.put(event, "optimize_ddp_split_child", {"name": event.data["child"]}, event.text(), where)


_RECORDS: dict[str, _Hear] = {
    "frame_start": _frame_start,
    "graph": _graph,
    "aot_joint_graph": _plain("aot_joint_graph"),
    "aot_forward_graph": _plain("aot_forward_graph"),
    "aot_backward_graph": _plain("aot_backward_graph"),
    "aot_inference_graph": _plain("aot_inference_graph"),
    "pre_grad_graphs": _named("inductor_pre_grad_graph"),
    "compiled_autograd_graph": _plain("compiled_autograd_graph"),
    "optimize_ddp_split_graph": _plain("optimize_ddp_split_graph"),
    "optimize_ddp_split_child": _split_child,
    "aten_graph_after_pass": _after_pass,
    "post_grad_graphs": _named("inductor_post_grad_graph"),
    "provenance": _provenance,
    "provenance_lines": _provenance_lines,
    "output_code": _output_code,
    "guards": _guards,
    "captured": _captured,
    "graph_breaks": _graph_break,
    "restart": _restart,
    "recompiles": _recompiles,
    "cache_size_limit": _recompiles,
    "cache": _cache,
    "fallback": _told("stage", "text"),
    "autotuning": _told("text"),
    "quantization": _told(),
    "frame_raised": _named("frame_raised"),
}

_SILENT = frozenset({"span_begin", "span_end", "graph_code"})
"""Spans are chromium events; the captured graph's code is the dynamo_output_graph."""
