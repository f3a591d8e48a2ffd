"""How a run ended: an exception, a crash, a hang is a value here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from dataclasses import field
from typing import Any, Literal

from argand.errors import ArgandError, BackendCompilerFailed
from argand.quick_dataclasses import dataclass

Kind = Literal["passed", "raised", "crashed", "hung", "memory"]
DETAIL = 20_000  # characters of a traceback or of output that are kept


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run in a child process ended.

    Arguments:
        kind: "passed", "raised" (an exception), "crashed" (a signal), "hung" (over the time limit), "memory".
        error: qualified name of the exception's type; of the signal, "SIGSEGV".
        message: the exception's text.
        stage: what was going on: an argand stage ("lower", "codegen"), or what `mark` said last ("compile", "run").
        where: "file.py:function" of the innermost frame.
        seconds: how long it took.
        detail: the traceback, or the last output of a process that died.
        data: what the exception has in its `data` attribute (`accuracy.AccuracyError`: output, kind, error, scale).
        value: what the function returned, where it is plain data.
    """

    kind: Kind
    error: str = ""
    message: str = ""
    stage: str = ""
    where: str = ""
    seconds: float = 0.0
    detail: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    value: Any = None

    @property
    def failed(self) -> bool:
        return self.kind != "passed"

    def same_end(self, other: Outcome) -> bool:
        """Whether two runs ended in the same way, whatever was going on."""
        return (self.kind, self.error) == (other.kind, other.error)

    def __str__(self) -> str:
        text = self.message.strip().splitlines()
        if self.kind == "passed":
            return "passed"
        if self.kind == "hung":
            return f"hangs ({self.stage})"
        if self.kind == "memory":
            return f"runs out of memory ({self.stage})"
        if self.kind == "crashed":
            return f"crashes with {self.error} ({self.stage})"
        return f"{self.error}: {text[0] if text else ''}" + (f" ({self.stage})" if self.stage else "")


def outcome_of_process(data: bytes, ended: bool, status: int, seconds: float, printed: str, stage: str) -> Outcome:
    """What became of a process.

    Arguments:
        data: the outcome that it wrote, as JSON; empty when it did not come so far.
        ended: it ended by itself.
        status: as of `os.waitpid`.
        printed: the end of its output.
        stage: what it said last that it is at.
    """
    if not ended:
        return Outcome("hung", "timeout", f"no end after {seconds:.1f} s", stage, seconds=seconds, detail=printed)
    if data:
        with contextlib.suppress(ValueError):
            return Outcome(**{**json.loads(data), "seconds": seconds})
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        kind: Kind = "memory" if number == signal.SIGKILL else "crashed"  # the system kills what takes too much
        return Outcome(kind, name, f"died of {name}", stage, _crash_place(printed), seconds, printed)
    code = os.waitstatus_to_exitcode(status)
    return Outcome("crashed", "exit", f"exited with code {code}", stage, seconds=seconds, detail=printed)


def _crash_place(printed: str) -> str:
    """The innermost Python frame of what faulthandler printed."""
    for line in printed.splitlines():
        if line.strip().startswith('File "'):
            file, _, rest = line.strip().removeprefix('File "').partition('", line ')
            return f"{os.path.basename(file)}:{rest.partition(' in ')[2]}"
    return ""


def outcome_of(error: BaseException, stage: str = "") -> Outcome:
    """The outcome that an exception is."""
    inner: BaseException = error
    while isinstance(inner, BackendCompilerFailed):
        inner = inner.inner
    kind: Kind = "raised"
    text = inner.cause if isinstance(inner, ArgandError) else str(inner)
    if isinstance(inner, MemoryError) or "can't allocate memory" in text or "CUDA out of memory" in text:
        kind = "memory"
    if isinstance(inner, ArgandError) and inner.stage not in ("argand", "backend", "internal"):
        stage = inner.stage
    data = getattr(inner, "data", None)
    return Outcome(
        kind,
        _type_name(type(inner)),
        text[:DETAIL],
        stage,
        _innermost(inner),
        detail="".join(traceback.format_exception(error))[-DETAIL:],
        data=data if isinstance(data, dict) else {},
    )


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    step = error.__traceback__
    if step is None:
        return ""
    while step.tb_next is not None:
        step = step.tb_next
    code = step.tb_frame.f_code
    return f"{os.path.basename(code.co_filename)}:{code.co_name}"
