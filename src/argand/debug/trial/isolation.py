"""Runs a function in a forked child, within limits.

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
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from argand import events
from argand.debug.trial.outcome import DETAIL, Outcome, outcome_of, outcome_of_process
from argand.errors import ArgandError
from argand.quick_dataclasses import dataclass

RUNNER = "argand: run_isolated"  # name of the thread that runs the function, where that is not the main one


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attempt, and the whole search, may take.

    Arguments:
        attempt_seconds: an attempt that takes longer hangs.
        memory: bytes that an attempt may take beyond what the process has; 0 is no limit.
        total_seconds: after so long the smallest program so far is the result; 0 is no limit.
    """

    attempt_seconds: float = 60.0
    memory: int = 0
    total_seconds: float = 0.0


class _Stage:
    """A line of shared memory in which a child says what it is at, so that its parent knows when it dies."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None

    def write(self, text: str) -> None:
        if self.memory is not None:
            self.memory[:64] = text.encode()[:64].ljust(64, b"\0")

    def read(self) -> str:
        return "" if self.memory is None else stage_text(bytes(self.memory[:64]))


_stage = _Stage()


def stage_text(memory: bytes) -> str:
    """What a child wrote into its line of memory."""
    return memory[:64].rstrip(b"\0").decode(errors="replace")


def mark(stage: str) -> None:
    """Say what the function that runs in `run_isolated` is at ("compile", "run", "backward")."""
    _stage.write(stage)


def use_stage(memory: mmap.mmap) -> None:
    """Write what `mark` says into this memory."""
    _stage.memory = memory


def can_fork() -> bool:
    """Whether children of this process can do what it can: not once a GPU is in use."""
    from argand.debug import gpus

    return not gpus.in_use()


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
        ArgandError: this process cannot be forked: a GPU is in use.
    """
    if not can_fork():
        raise ArgandError(
            "this process cannot be forked: it uses a GPU",
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
        return outcome_of_process(data, ended, status, time.monotonic() - start, end_of(output), _stage.read())


def end_of(output: IO[bytes]) -> str:
    """The last of what a child printed."""
    output.seek(max(os.fstat(output.fileno()).st_size - DETAIL, 0))
    return output.read(DETAIL).decode(errors="replace")


def _receive(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """Everything that comes through the pipe, and whether it was closed before the deadline."""
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return data, False
        part = os.read(pipe, 1 << 16)
        if not part:
            return data, True
        data += part


def kill(child: int) -> None:
    """End a process and those that it started."""
    for target in (-child, child):
        with contextlib.suppress(OSError):
            os.kill(target, signal.SIGKILL)


def _child(
    function: Callable[[], Any], receive: int, send: int, output: int, memory_limit: int, main_thread: bool
) -> None:
    """The life of the child; does not return."""
    try:
        os.close(receive)
        detach(output)
        faulthandler.enable(open(2, "w", closefd=False), all_threads=False)  # noqa: SIM115
        limit_memory(memory_limit)
        events.bus.mute()  # what attempts do belongs in no log and no trace
        outcomes: list[Outcome] = []
        if main_thread:
            outcomes.append(call(function))
        else:
            thread = threading.Thread(target=lambda: outcomes.append(call(function)), name=RUNNER)
            thread.start()
            thread.join()
        text = json.dumps(asdict(outcomes[0])).encode()
        with contextlib.suppress(Exception):  # the function may have closed it
            sys.stdout.flush()
        while text:
            text = text[os.write(send, text) :]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def detach(output: int) -> None:
    """In a fork: what it starts is killed with it, and what it prints goes to this descriptor (-1: as before)."""
    with contextlib.suppress(OSError):
        os.setsid()
    if output >= 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115 - lives as long as the process
        sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115


def limit_memory(memory_limit: int) -> None:
    """Let this process take so many bytes more than it has (0: any number), and write no core files."""
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
