"""Runs a function in a forked child: whatever happens to it, an exception, a crash, a hang, is a value here.

The child has all that the process has (the user's backend, replaced lowerings, imported modules), so that an attempt
costs a fork and not an import of torch. What it runs is run in a new thread: threads do not survive a fork, and
OpenMP's would be waited for in the one that forked.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from argand import events
from argand.errors import ArgandError, BackendCompilerFailed

Kind = Literal["passed", "raised", "crashed", "hung", "memory"]
RUNNER = "argand: run_isolated"  # name of the thread that runs the function, where that is not the main one
_DETAIL = 20_000  # characters of a traceback or of output that are kept


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


class _Stage:
    """A line of shared memory in which a child says what it is at, so that its parent knows when it dies."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None

    def write(self, text: str) -> None:
        if self.memory is not None:
            self.memory[:64] = text.encode()[:64].ljust(64, b"\0")

    def read(self) -> str:
        return "" if self.memory is None else bytes(self.memory[:64]).rstrip(b"\0").decode(errors="replace")


_stage = _Stage()


def mark(stage: str) -> None:
    """Say what the function that runs in `run_isolated` is at ("compile", "run", "backward")."""
    _stage.write(stage)


def use_stage(memory: mmap.mmap) -> None:
    """Write what `mark` says into this memory."""
    _stage.memory = memory


def can_fork() -> bool:
    """Whether children of this process can do what it can: not on Windows, nor once a GPU is in use."""
    from argand.debug import gpus

    return hasattr(os, "fork") and not gpus.in_use()


def run_isolated(
    function: Callable[[], Any],
    *,
    time_limit: float = 60.0,
    memory_limit: int = 0,
    quiet: bool = True,
    main_thread: bool = False,
) -> Outcome:
    """Run `function` in a forked child of this process.

    Arguments:
        function: called without arguments. What it returns comes back when it is plain data (JSON).
        time_limit: seconds until it counts as hung and is killed, with every process that it started.
        memory_limit: bytes that it may take beyond what this process has; 0 is no limit.
        quiet: what it prints goes into `Outcome.detail` when it dies, not to the terminal.
        main_thread: run it in the child's main thread (what handles signals must), which takes that the thread that
            calls this never had OpenMP's threads (`torch.set_num_threads(1)` before its first operation).

    Raises:
        ArgandError: this process cannot be forked (Windows, or a GPU is in use).
    """
    if not can_fork():
        raise ArgandError(
            "this process cannot be forked: it uses a GPU, or the system has no fork",
            remedy="run the minifier_launcher.py that was written in a new process",
        )
    _stage.memory = _stage.memory or mmap.mmap(-1, 4096)
    _stage.write("")
    sys.stdout.flush()
    sys.stderr.flush()
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of threads; see the module's docstring
            child = os.fork()
        if child == 0:
            _child(function, receive, send, output.fileno() if quiet else -1, memory_limit, main_thread)
        os.close(send)
        try:
            data, ended = _receive(receive, start + time_limit)
        except BaseException:
            kill(child)
            os.waitpid(child, 0)
            raise
        finally:
            os.close(receive)
        if not ended:
            kill(child)
        status = os.waitpid(child, 0)[1]
        seconds = time.monotonic() - start
        output.seek(max(os.fstat(output.fileno()).st_size - _DETAIL, 0))
        printed = output.read(_DETAIL).decode(errors="replace")
    return outcome_of_process(data, ended, status, seconds, printed, _stage.read())


def _receive(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """Everything that comes through the pipe, and whether it was closed before the deadline."""
    found = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return found, False
        part = os.read(pipe, 1 << 16)
        if not part:
            return found, True
        found += part


def kill(child: int) -> None:
    """End a process and those that it started."""
    for target in (-child, child):
        with contextlib.suppress(OSError):
            os.kill(target, signal.SIGKILL)


def outcome_of_process(data: bytes, ended: bool, status: int, seconds: float, printed: str, stage: str) -> Outcome:
    """What became of a process.

    Arguments:
        data: the outcome that it wrote, as JSON; empty when it did not come so far.
        ended: it ended by itself.
        status: as of `os.waitpid`.
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


def _child(
    function: Callable[[], Any], receive: int, send: int, output: int, memory_limit: int, main_thread: bool
) -> None:
    """The life of the child; does not return."""
    try:
        os.close(receive)
        with contextlib.suppress(OSError):
            os.setsid()  # so that a compiler that it runs is killed with it
        if output >= 0:
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115 - lives as long as the process
            sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        faulthandler.enable(open(2, "w", closefd=False), all_threads=False)  # noqa: SIM115
        limit_memory(memory_limit)
        events.bus.sinks, events.bus.named = (), {}  # what attempts do belongs in no log and no trace
        events.bus.prepare = lambda: None
        made: list[Outcome] = []
        if main_thread:
            made.append(call(function))
        else:
            thread = threading.Thread(target=lambda: made.append(call(function)), name=RUNNER)
            thread.start()
            thread.join()
        text = json.dumps(asdict(made[0])).encode()
        with contextlib.suppress(Exception):  # the function may have closed it
            sys.stdout.flush()
        while text:
            text = text[os.write(send, text) :]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def limit_memory(memory_limit: int) -> None:
    """Let this process take so many bytes more than it has (0: any number), and write no core files."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_limit > 0:
        with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
            have = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (have + memory_limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def call(function: Callable[[], Any]) -> Outcome:
    """The outcome of a call in this process."""
    try:
        value = function()
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            value = None
        return Outcome("passed", value=value)
    except BaseException as error:
        return outcome_of(error, _stage.read())


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
        text[:_DETAIL],
        stage,
        _innermost(inner),
        detail="".join(traceback.format_exception(error))[-_DETAIL:],
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
