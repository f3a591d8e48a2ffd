"""One record per compile: how long each stage took, what was made, what failed.

A `Collector` hears events and hands out a `CompilationMetrics` when a compile (or the compile of a backward) ends.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from argand._core.calls import locked
from argand.errors import ArgandError, BackendCompilerFailed
from argand.events import CompileId, Event
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass

KEPT = 1024  # records that a process keeps
_NATIVE = ("passes", "lower", "schedule", "codegen", "load")
_CODE = ("codegen", "load")


@dataclass(slots=True)
class CompilationMetrics:
    """What one compile took and made. The fields up to `restart_reasons` have torch's names and meanings.

    Arguments:
        compile_id: "frame/recompile_attempt".
        is_forward: False for a backward that was compiled later than its forward.
        co_name, co_filename, co_firstlineno: the function.
        cache_size, accumulated_cache_size: compiled versions that the function had already.
        guard_count, shape_env_guard_count: guards, and those of them about symbolic sizes.
        graph_op_count, graph_node_count, graph_input_count: calls, nodes and inputs of the captured graph.
        start_time: seconds since 1970.
        entire_frame_compile_time_s, backend_compile_time_s, inductor_compile_time_s, code_gen_time_s: seconds of the
            whole, of the backend, of the native compiler from ATen graph to loaded code, of making and loading code.
        fail_type, fail_reason, fail_user_frame_filename, fail_user_frame_lineno: why there is no compiled code.
        restart_reasons, dynamo_time_before_restart_s: why capture began anew, and what the attempts before took.
        end_time: seconds since 1970.
        phases: seconds of each span by name, those of equal name added up.
        kernels: generated kernels.
        fallbacks: "op: reason" of what runs with eager's kernels.
        cache_hits, cache_misses, cache_bypasses: of compiled graphs.
        break_reasons: the graph breaks of this frame.
        recompile_reasons: why the versions there were did not fit.
        thread: native id of the compiling thread.
    """

    compile_id: str = ""
    is_forward: bool = True
    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    cache_size: int = 0
    accumulated_cache_size: int = 0
    guard_count: int = 0
    shape_env_guard_count: int = 0
    graph_op_count: int = 0
    graph_node_count: int = 0
    graph_input_count: int = 0
    start_time: float = 0.0
    entire_frame_compile_time_s: float = 0.0
    backend_compile_time_s: float = 0.0
    inductor_compile_time_s: float = 0.0
    code_gen_time_s: float = 0.0
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    non_compliant_ops: list[str] = field(default_factory=list)
    compliant_custom_ops: list[str] = field(default_factory=list)
    restart_reasons: list[str] = field(default_factory=list)
    dynamo_time_before_restart_s: float = 0.0
    end_time: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    fallbacks: list[str] = field(default_factory=list)
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bypasses: int = 0
    break_reasons: list[str] = field(default_factory=list)
    recompile_reasons: list[str] = field(default_factory=list)
    thread: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return dataclasses.asdict(self)

    def add_phase(self, name: str, seconds: float) -> None:
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def fail(self, kind: str, reason: str, where: Any = None) -> None:
        """Note why this compile came to nothing; the first reason stays."""
        if self.fail_type is None:
            self.fail_type, self.fail_reason = kind, reason
            if where is not None:
                self.fail_user_frame_filename, self.fail_user_frame_lineno = where.filename, where.lineno


@dataclass(slots=True)
class _Open:
    """A compile that is under way."""

    metrics: CompilationMetrics
    root: str
    compile_id: CompileId
    depth: Counter[str] = field(default_factory=Counter)


ROOTS = (
    "capture_frame",
    "torch_compile",
    "compile_backward",
    "compile_autograd",
)  # "torch_compile": a graph that it captured


class Collector:
    """Makes `CompilationMetrics` from events.

    Arguments:
        done: called with each finished record and the compile's id.
    """

    def __init__(self, done: Callable[[CompilationMetrics, CompileId], None]) -> None:
        self.done = done
        self._open: dict[int, list[_Open]] = {}
        self._functions: dict[tuple[int | None, int | None], tuple[str | None, str | None, int | None]] = {}

    def __call__(self, event: Event) -> None:
        thread = threading.get_ident()
        name, data = event.name, event.data
        if name == "span_begin" and data.get("span") in ROOTS and event.compile_id is not None:
            self._open.setdefault(thread, []).append(_start(event))
            return
        stack = self._open.get(thread)
        if not stack:
            return
        now = stack[-1]
        if event.compile_id is not None and event.compile_id.attempt > now.compile_id.attempt:
            now.compile_id = event.compile_id
        if name == "span_end":
            for one in stack:
                one.metrics.add_phase(data["span"], data["seconds"])
            if data["span"] == now.root:
                stack.pop()
                if not stack:
                    del self._open[thread]
                _finish(now, event)
                self._name(now)
                self.done(now.metrics, now.compile_id)
            return
        hear = _HEARD.get(name)
        if hear is not None:
            hear(now.metrics, event)

    def _name(self, one: _Open) -> None:
        """A backward belongs to the function of its forward."""
        metrics, key = one.metrics, (one.compile_id.frame, one.compile_id.recompile)
        if metrics.is_forward:
            if len(self._functions) >= KEPT:
                self._functions.clear()
            self._functions[key] = metrics.co_name, metrics.co_filename, metrics.co_firstlineno
        else:
            metrics.co_name, metrics.co_filename, metrics.co_firstlineno = self._functions.get(
                key, (metrics.co_name, None, None)
            )


def _start(event: Event) -> _Open:
    assert event.compile_id is not None
    metrics = CompilationMetrics(start_time=event.time_ns / 1e9, thread=threading.get_native_id())
    root = str(event.data["span"])
    metrics.is_forward = root not in ("compile_backward", "compile_autograd")
    metrics.co_name = event.data.get("function")
    return _Open(metrics, root, event.compile_id)


def _finish(one: _Open, event: Event) -> None:
    metrics, data = one.metrics, event.data
    metrics.compile_id = str(one.compile_id)
    metrics.end_time = event.time_ns / 1e9
    metrics.entire_frame_compile_time_s = data["seconds"]
    metrics.backend_compile_time_s = metrics.phases.get("backend", 0.0)
    metrics.inductor_compile_time_s = sum(metrics.phases.get(name, 0.0) for name in _NATIVE)
    metrics.code_gen_time_s = sum(metrics.phases.get(name, 0.0) for name in _CODE)
    if not data["ok"]:
        error = sys.exception()  # the span ends because of it
        inner = error.inner if isinstance(error, BackendCompilerFailed) else error
        where = error.where[-1] if isinstance(error, ArgandError) and error.where else None
        metrics.fail(type(error).__name__, str(inner if inner is not None else "unknown"), where)


def _on_frame(metrics: CompilationMetrics, event: Event) -> None:
    data = event.data
    metrics.co_name, metrics.co_filename, metrics.co_firstlineno = data["function"], data["filename"], data["lineno"]
    metrics.cache_size = metrics.accumulated_cache_size = data.get("entries", 0)


def _on_graph(metrics: CompilationMetrics, event: Event) -> None:
    graph = event.data.get("graph")
    if graph is not None:
        ops = [node.op for node in graph.graph.nodes]
        metrics.graph_node_count = len(ops)
        metrics.graph_op_count = sum(op.startswith("call") for op in ops)
        metrics.graph_input_count = ops.count("placeholder")


def _on_guards(metrics: CompilationMetrics, event: Event) -> None:
    metrics.guard_count = event.data.get("guards", 0)
    metrics.shape_env_guard_count = len(event.data.get("conditions", ()))


def _on_break(metrics: CompilationMetrics, event: Event) -> None:
    reason = event.data.get("reason")
    if reason is None:
        return
    metrics.break_reasons.append(str(reason))
    if event.data.get("frame_skipped"):
        metrics.fail("Unsupported", str(reason), reason.where[-1] if reason.where else None)


def _on_restart(metrics: CompilationMetrics, event: Event) -> None:
    metrics.restart_reasons.append(event.text())
    metrics.dynamo_time_before_restart_s = event.time_ns / 1e9 - metrics.start_time


def _on_raised(metrics: CompilationMetrics, event: Event) -> None:
    metrics.fail("FrameRaised", f"the program raises in this call: {event.text()}")


def _on_fallback(metrics: CompilationMetrics, event: Event) -> None:
    what = event.data.get("op") or event.data.get("scope") or event.stage
    metrics.fallbacks.append(f"{what}: {event.data.get('reason') or event.text()}")


def _on_cache(metrics: CompilationMetrics, event: Event) -> None:
    outcome = event.data.get("outcome")
    if outcome == "hit":
        metrics.cache_hits += 1
    elif outcome in ("miss", "corrupt"):
        metrics.cache_misses += outcome == "miss"
    else:
        metrics.cache_bypasses += 1


def _on_schedule(metrics: CompilationMetrics, event: Event) -> None:
    metrics.kernels += int(event.data.get("kernels", 0))


def _on_recompile(metrics: CompilationMetrics, event: Event) -> None:
    metrics.recompile_reasons += [str(reason) for reason in event.data.get("reasons", ())]


_HEARD: dict[str, Callable[[CompilationMetrics, Event], None]] = {
    "frame_start": _on_frame,
    "graph": _on_graph,
    "captured": _on_guards,
    "graph_breaks": _on_break,
    "restart": _on_restart,
    "frame_raised": _on_raised,
    "fallback": _on_fallback,
    "cache": _on_cache,
    "schedule": _on_schedule,
    "recompiles": _on_recompile,
}


HEARD = ("span_begin", "span_end", *_HEARD, "cache_size_limit", "cudagraphs", "remote_cache")
"""The events that metrics and counters are made of."""


class Counters:
    """How often things happened in this process: by group and name, like `{"graph_breaks": {"print": 2}}`.

    Groups: frames (compiled, failed, raised, restarted), graphs (captured, ops), graph_breaks (by kind), recompiles (by
    function), fallbacks (by operator or scope), cache (hit, miss, ...), kernels (generated), cuda_graphs (recorded,
    skipped), remote_cache (hit, miss, waited, stored, rejected, error, skipped).
    """

    def __init__(self) -> None:
        self._groups: dict[str, Counter[str]] = {}
        self.lock = fork_safe_lock()

    def __call__(self, event: Event) -> None:
        counted = _counted(event)
        if counted:
            self._add(counted)

    @locked
    def _add(self, counted: list[tuple[str, str, int]]) -> None:
        for group, name, count in counted:
            self._groups.setdefault(group, Counter())[name] += count

    @locked
    def as_dict(self) -> dict[str, dict[str, int]]:
        """A copy."""
        return {group: dict(names) for group, names in self._groups.items()}

    @locked
    def clear(self) -> None:
        """Everything to zero."""
        self._groups.clear()


def _counted(event: Event) -> list[tuple[str, str, int]]:
    """(group, name, count) of what an event adds."""
    name, data = event.name, event.data
    if name == "span_end":
        root = data["span"] in ("capture_frame", "torch_compile")
        return [("frames", "compiled" if data["ok"] else "failed", 1)] if root else []
    if name == "graph":
        graph = data.get("graph")
        ops = 0 if graph is None else sum(node.op.startswith("call") for node in graph.graph.nodes)
        return [("graphs", "captured", 1), ("graphs", "ops", ops)]
    if name == "graph_breaks":
        return [("graph_breaks", str(getattr(data.get("reason"), "kind", "unknown")), 1)]
    if name == "fallback":
        return [("fallbacks", str(data.get("op") or data.get("scope") or event.stage), 1)]
    if name == "cudagraphs":
        return [("cuda_graphs", data["outcome"], 1)] if "outcome" in data else []
    if name == "schedule":
        return [("kernels", "generated", int(data.get("kernels", 0)))]
    group, source = _SIMPLE.get(name, ("", ""))
    if not group:
        return []
    return [(group, str(data.get(source[1:], "unknown")) if source.startswith("=") else source, 1)]


_SIMPLE = {
    "remote_cache": ("remote_cache", "=outcome"),
    "frame_raised": ("frames", "raised"),
    "restart": ("frames", "restarted"),
    "cache_size_limit": ("frames", "over cache_size_limit"),
    "recompiles": ("recompiles", "=function"),
    "cache": ("cache", "=outcome"),
}
"""Group and name; `=key` is the value of that key."""
