"""Captures a frame: the callback of the frame hook.

FrameInfo -> interpret (restarting at the instruction where the graph breaks) -> graph, guards, new code -> Entry
"""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from argand import errors, events
from argand._core import _C
from argand.bytecode.decode import decode
from argand.bytecode.format import dis_text
from argand.bytecode.resume import transformed_code
from argand.capture import aliasing, modes, skip
from argand.capture.interpreter import Interpreter, RootExit, Session
from argand.capture.region import Region
from argand.capture.state import CaptureState
from argand.capture.tensors import GraphBuilder, TraceMode
from argand.capture.transform import Transformed, Transformer
from argand.config import config
from argand.graph.compat import keep_torch_compiler_out

_RESTARTS = 64  # attempts on one frame: each restart breaks at one more place


@dataclass(slots=True)
class _Known:
    """What is remembered of a code object."""

    frame_id: int
    compiles: int = 0
    raised: int = 0
    warned: set[str] = field(default_factory=set)


class _Process:
    """Process-wide bookkeeping: frame numbers and the interpreter's caches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.known: weakref.WeakKeyDictionary[types.CodeType, _Known] = weakref.WeakKeyDictionary()
        self.local = threading.local()

    def of(self, code: types.CodeType) -> _Known:
        with self.lock:
            known = self.known.get(code)
            if known is None:
                known = self.known[code] = _Known(len(self.known))
            return known

    def session(self) -> Session:
        """The decoded programs of this thread."""
        session: Session | None = getattr(self.local, "session", None)
        if session is None:
            session = self.local.session = Session()
        return session


_process = _Process()


def reset() -> None:
    """Forget frame numbers, warnings and decoded programs."""
    _process.reset()


def capture_frame(info: _C.FrameInfo, *, region: Region) -> _C.Answer:
    """Answer the frame hook for a frame that no entry matched.

    Returns:
        An Entry; SKIP for code that is never captured; RUN_ONLY past the cache limit; None to run this call eagerly.

    Raises:
        Unsupported: `region.fullgraph`, and the frame cannot be captured whole.
        BackendCompilerFailed: the backend raised (unless `config.suppress_errors`).
    """
    code = info.code
    if config.disable or (config.debug_function and code.co_name != config.debug_function):
        return None if config.disable else _C.SKIP
    if skip.why_never(code) is not None:
        return _C.SKIP
    if modes.cannot_capture():
        return None
    known = _process.of(code)
    if info.entries >= config.cache_size_limit:
        _warn_cache_limit(info, known)
        return _C.RUN_ONLY
    _report_recompile(info)
    compile_id = events.CompileId(known.frame_id, known.compiles)
    known.compiles += 1
    with (
        events.bus.compiling(compile_id),
        events.span("capture_frame", "capture", function=code.co_name),
        _without_gc(),
    ):
        try:
            return _Capture(info, region, known).run()
        except (errors.ArgandError, KeyboardInterrupt, SystemExit) as error:
            return _failed(error, info, region, known)
        except errors.GraphBreak as found:
            return _gave_up(found, info, region, known)
        except BaseException as error:
            return _internal_failure(error, info, region, known)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: compiling makes many objects that live, and each full collection walks
    the whole process (0.2 to 1 s with a model loaded)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Capture:
    """One answer of the hook: as many attempts as the frame needs."""

    def __init__(self, info: _C.FrameInfo, region: Region, known: _Known) -> None:
        self.info = info
        self.region = region
        self.known = known
        self.reason: errors.BreakReason | None = None

    def run(self) -> _C.Answer:
        break_at: frozenset[int] = frozenset()
        for _ in range(_RESTARTS):
            with modes.restored() as before:
                state = self._new_state()
                try:
                    exit = self._interpret(state, break_at)
                except errors.GraphBreak as found:
                    break_at = self._restart(found, break_at)
                    continue
                after = modes.snapshot()
            if exit.kind == "raise":
                return self._raised(exit)
            return self._compile(state, exit, before, after)
        raise errors.graph_break(
            kind="too many restarts", explanation="Capture kept breaking at new places.", skip_frame=True
        )

    def _new_state(self) -> CaptureState:
        info = self.info
        return CaptureState(info.code, info.globals, info.builtins, info.closure, info.args, config, GraphBuilder())

    def _interpret(self, state: CaptureState, break_at: frozenset[int]) -> RootExit:
        state.guards.add(None, "global_state", modes.guard_functions())
        interpreter = Interpreter(state, _process.session())
        state.interpreter = interpreter
        keep_torch_compiler_out()
        with TraceMode(state.graph):
            return interpreter.run_root(break_at)

    def _restart(self, found: errors.GraphBreak, break_at: frozenset[int]) -> frozenset[int]:
        if self.region.fullgraph and not isinstance(found.extra.get("exception"), Exception):
            raise _unsupported(found) from None
        sequence = found.extra.get("sequence")
        if found.skip_frame or not isinstance(sequence, int) or sequence in break_at:
            raise found
        self.reason = found.reason
        return frozenset({sequence})

    def _raised(self, exit: RootExit) -> _C.Answer:
        """The program raises in this call: run it for real, so that everything about the exception is right."""
        self.known.raised += 1
        events.emit("frame_raised", "capture", lambda: repr(exit.exc), function=self.info.code.co_name)
        return None

    def _compile(self, state: CaptureState, exit: RootExit, before: modes.Snapshot, after: modes.Snapshot) -> _C.Answer:
        if exit.kind == "return" and not any(n.op.startswith("call") for n in state.graph.graph.nodes):
            return self._without_graph(state)
        aliasing.guard(state)
        made = Transformer(state, exit, before, after, self.reason).build(self._backend)
        guards = state.guards.build()
        info = self.info
        outcome = guards.evaluate(info.args, info.globals, info.builtins, info.closure)
        if outcome is not True:
            raise errors.graph_break(
                kind="guard does not hold",
                context=str(outcome),
                explanation="A condition that the captured code relies on changes by itself; the frame runs eagerly.",
                skip_frame=True,
            )
        info.globals.update(made.globals)
        for resume in made.resumes:
            _process.session().original_offsets[resume.code] = resume.original_offsets
        self._emit_events(state, made)
        return _C.Entry(made.code, guards, self.region, made)

    def _without_graph(self, state: CaptureState) -> _C.Answer:
        """Nothing of torch's ran: the frame's own code, kept under the guards that led here."""
        if len(state.guards) <= 1:
            return _C.SKIP
        code = self.info.code
        return _C.Entry(transformed_code(code, decode(code)), state.guards.build(), self.region, None)

    def _backend(self, graph: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        with events.span("backend", "capture", backend=self.region.backend_name):
            compiled = self.region.backend(graph, inputs)
        return _C.Region(None, None, compiled)  # Python code of the backend's own is not captured

    def _emit_events(self, state: CaptureState, made: Transformed) -> None:
        code = self.info.code
        if not events.bus.sinks:
            return
        if self.reason is not None:
            events.emit("graph_breaks", "capture", str(self.reason), reason=self.reason, function=code.co_name)
        if made.graph is not None:
            graph = made.graph
            events.emit(
                "graph_code", "capture", lambda: graph.print_readable(print_output=False), graph_name=made.graph_name
            )
        where = f"{code.co_name} {code.co_filename} line {code.co_firstlineno}"
        events.emit(
            "bytecode",
            "capture",
            lambda: f"ORIGINAL BYTECODE {where}\n{dis_text(code)}\nMODIFIED BYTECODE {where}\n{dis_text(made.code)}",
            function=code.co_name,
        )
        events.emit(
            "guards",
            "capture",
            f"GUARDS:\n{state.guards.listing()}",
            guards=[g.text() for g in state.guards if g.shown],
        )


# ---------------------------------------------------------------------- what can go wrong


def _unsupported(found: errors.GraphBreak) -> BaseException:
    """What fullgraph=True raises for a break."""
    reason = found.reason
    cause = f"{reason.kind}: {reason.explanation}" + (f" ({reason.context})" if reason.context else "")
    return errors.Unsupported(cause, remedy="; ".join(reason.hints), where=reason.where)


def _gave_up(found: errors.GraphBreak, info: _C.FrameInfo, region: Region, known: _Known) -> _C.Answer:
    """The frame cannot be captured: it runs eagerly, what it calls is still looked at."""
    raised = isinstance(found.extra.get("exception"), Exception)
    if region.fullgraph and not raised:
        raise _unsupported(found) from None
    events.emit(
        "graph_breaks",
        "capture",
        str(found.reason),
        reason=found.reason,
        function=info.code.co_name,
        frame_skipped=True,
    )
    return None if raised else _C.SKIP  # a torch call that raises in this call may not in the next


def _failed(error: BaseException, info: _C.FrameInfo, region: Region, known: _Known) -> _C.Answer:
    if isinstance(error, errors.InternalError):
        return _internal_failure(error, info, region, known)
    if not config.suppress_errors or not isinstance(error, errors.ArgandError) or isinstance(error, errors.Unsupported):
        raise error from error.__cause__
    _warn_once(known, "failed", f"argand runs {info.code.co_name} eagerly, compiling it failed: {error}")
    return _C.SKIP


def _internal_failure(error: BaseException, info: _C.FrameInfo, region: Region, known: _Known) -> _C.Answer:
    """A bug in argand: the frame runs eagerly, with one warning; with fullgraph or verbose it is raised."""
    inner = getattr(error, "error", error)
    text = f"capturing {info.code.co_name} ({info.code.co_filename}:{info.code.co_firstlineno}) failed inside argand"
    if region.fullgraph and not config.suppress_errors:
        raise errors.InternalError(f"{text}: {type(inner).__name__}: {inner}") from error
    import traceback

    detail = "".join(traceback.format_exception(error)) if config.verbose else f"{type(inner).__name__}: {inner}"
    _warn_once(known, "internal", f"argand: {text}; it runs eagerly. {detail}")
    return _C.SKIP


def _warn_once(known: _Known, kind: str, text: str) -> None:
    if kind not in known.warned:
        known.warned.add(kind)
        warnings.warn(text, stacklevel=3)


def _warn_cache_limit(info: _C.FrameInfo, known: _Known) -> None:
    reasons = "; ".join(f"{label}: {detail}" for _, label, detail in info.failures[:1])
    _warn_once(
        known,
        "cache_size_limit",
        f"argand: {info.code.co_name} ({info.code.co_filename}:{info.code.co_firstlineno}) was compiled "
        f"{config.cache_size_limit} times (argand.config.cache_size_limit) and now runs eagerly when no version fits. "
        f"Last guard that failed: {reasons or 'unknown'}",
    )


def _report_recompile(info: _C.FrameInfo) -> None:
    if not info.failures or not events.bus.sinks:
        return
    reasons = [f"{label}: {detail}" for _, label, detail in info.failures]
    code = info.code
    text = f"Recompiling {code.co_name} ({code.co_filename}:{code.co_firstlineno}): " + "; ".join(reasons)
    events.emit("recompiles", "capture", text, function=code.co_name, reasons=reasons)
