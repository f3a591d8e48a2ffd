"""Says which frame is being compiled, who called it and what was found: for traces and metrics."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import CodeType, FrameType

from argand import events
from argand._core import _C
from argand.bytecode.format import dis_text
from argand.bytecode.resume import resume_label
from argand.capture.driver import consequent_breaks
from argand.capture.facts.name_tables import code_words, source_line
from argand.capture.interp.state import CaptureState
from argand.capture.output.transform import Transformed
from argand.capture.record.guards import GuardSet
from argand.capture.sizes import symbolic_emit
from argand.capture.world import narration
from argand.config import config
from argand.errors import BreakReason, UserLine
from argand.graph.nodes.module_text import module_text
from argand.own_code import OWN_FOLDER

_OWN = str(Path(OWN_FOLDER).resolve())
_DEEPEST = 400
_RUNPY = ("<frozen runpy>", runpy.__file__)


def frame_start(info: _C.FrameInfo) -> None:
    """Emit "frame_start": the function, how many compiled versions it has, and (payload) the user's stack."""
    if not events.bus.wanted("frame_start"):
        return
    code, caller = info.code, sys._getframe(1)
    events.emit(
        "frame_start",
        "capture",
        lambda: [*_callers(caller), (code.co_filename, code.co_firstlineno, code_words(code))],
        function=code_words(code),
        filename=code.co_filename,
        lineno=code.co_firstlineno,
        entries=info.entries,
    )


def restart(attempt: int, reason: BreakReason | None, code: CodeType) -> None:
    """Say why a frame is captured anew; what is emitted from now on belongs to another attempt at the same compile."""
    text = "sizes or numbers were found to matter" if reason is None else str(reason)
    events.emit("restart", "capture", text, reason=reason, next=attempt, function=code.co_name)
    events.bus.next_attempt(attempt)


def captured(guards: GuardSet) -> None:
    """Emit "captured": how many guards the new version of a frame has, and its conditions on symbolic sizes."""
    if not events.bus.wanted("captured"):
        return
    conditions: list[str] = []
    if guards.dynamics is not None:
        conditions = [line.removeprefix("- ") for line in symbolic_emit.listing(guards.dynamics)]
    events.emit("captured", "capture", None, guards=len(guards), conditions=conditions)


def version(code: CodeType, state: CaptureState, transformed: Transformed, reason: BreakReason | None) -> None:
    """Emit what a new version of a frame is, and why its graph ends."""
    if not events.bus.listening:
        return
    if reason is not None:
        reason = consequent_breaks.in_terms_of_the_program(reason, code)
        events.emit("graph_breaks", "capture", str(reason), reason=reason, function=code.co_name)
    if transformed.graph is not None:
        graph = transformed.graph
        events.emit("graph_code", "capture", lambda: module_text(graph), graph_name=transformed.graph_name)
    name = resume_label(code) or code.co_name
    where = f"{name} {code.co_filename} line {code.co_firstlineno}"
    events.emit(
        "bytecode",
        "capture",
        lambda: f"ORIGINAL BYTECODE {where}\n{dis_text(code)}\nMODIFIED BYTECODE {where}\n{dis_text(transformed.code)}",
        function=code.co_name,
    )
    captured(state.guards)
    if events.bus.wanted("guards"):
        shown = [g for g in state.guards if g.shown]
        # Texts, not callables: the capture's state is gone when a sink that keeps events asks.
        text, places = f"GUARDS:\n{state.guards.listing()}", [place(g.position) for g in shown]
        events.emit("guards", "capture", text, guards=[g.text() for g in shown], places=places)
    narration.side_effects(state)
    if "verbose_guards" in events.bus.named:
        events.bus.detail("verbose_guards", "capture", f"GUARDS:\n{state.guards.verbose()}")


def place(position: tuple[CodeType, int] | None) -> UserLine | None:
    """The line of the program that made a guard necessary; None where that is not known."""
    if position is None:
        return None
    code, line = position
    return UserLine(code.co_filename, line, code_words(code), source_line(code.co_filename, line).strip())


def _callers(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """(file name, line, function) of the frames on the stack that are not argand's, outermost first.

    A program that argand started (`argand run`) begins with its own first frame.
    """
    callers: list[tuple[str, int, str]] = []
    while frame is not None and len(callers) < _DEEPEST:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            callers.append((code.co_filename, frame.f_lineno or code.co_firstlineno, code_words(code)))
        elif callers and callers[-1][0] in _RUNPY:
            while callers and callers[-1][0] in _RUNPY:
                callers.pop()
            break
        frame = frame.f_back
    return callers[::-1]


def shown(exc: BaseException | None) -> str:
    """An exception without running the program's own code."""
    args = () if exc is None else vars(BaseException)["args"].__get__(exc)
    plain = (repr(arg) if type(arg) in (str, int, float, bool) else f"<{type(arg).__name__}>" for arg in args)
    return f"{type(exc).__name__}({', '.join(plain)})"


def asked_for(code: CodeType) -> bool:
    """Whether `config.debug_function` names this function: by name or qualified name, several separated by commas."""
    names = {name.strip() for name in config.debug_function.split(",")}
    return code.co_name in names or code.co_qualname in names or code_words(code) in names
