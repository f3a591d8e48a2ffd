"""Runs compilers: in time, with bounded output, and with nothing left of them whatever happens.

In: commands. Out: how each ended. A command runs in a process group of its own, which is killed as a whole when the
time is over, when this thread is interrupted, or when this process ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path

from argand import files, threads
from argand.quick_dataclasses import dataclass
from argand.runtime import kernel_directories

_MARK = "ARGAND_COMMANDS"  # in the environment of commands: tells them from other children of this process
_PROC_LIMIT = 1 << 22  # bytes of a file in /proc
PATIENT: ContextVar[bool] = ContextVar("argand_patient_commands", default=False)
"""Whether nobody waits for what is run: others are to have the processors first."""
_LOW = 5  # the priority of such commands: a third of another one's time, so that they end within seconds
OUTPUT_LIMIT = 1 << 18  # bytes of output that are kept; the rest is read and dropped
_TICK = 0.2
_LONGEST_START = 1.0  # seconds in which a process that was started shows its environment


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Arguments:
        command: what ran.
        code: exit status; of a signal, its number, negative.
        output: what it printed, cut to `OUTPUT_LIMIT`.
        timed_out: it was killed because its time was over.
    """

    command: tuple[str, ...]
    code: int
    output: str
    timed_out: bool

    @property
    def how(self) -> str:
        """In words."""
        if self.timed_out:
            return "did not end in time"
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
            return f"was killed by {name}"
        return f"ended with exit code {self.code}"


@dataclass(slots=True, eq=False)
class _Running:
    process: subprocess.Popen[bytes]
    output: list[bytes] = field(default_factory=list)
    kept: int = 0
    open: bool = True

    def take(self) -> None:
        """Read what is there."""
        pipe = self.process.stdout
        assert pipe is not None
        try:
            part = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not part:
            self.open = False
        elif self.kept < OUTPUT_LIMIT:
            self.output.append(part[: OUTPUT_LIMIT - self.kept])
            self.kept += len(self.output[-1])

    def exited(self) -> bool:
        """Whether the command itself ended (what it started may go on, and hold its output open)."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody else in this program waits for every child
            return True
        except AttributeError:
            return self.process.poll() is not None

    def kill(self) -> None:
        """End the command and what it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill what goes on, and wait."""
        if self.process.returncode is None:
            self.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass(slots=True)
class _Children:
    """A daemon thread that runs commands does not outlive this process, so neither may they.

    Arguments:
        running: processes that run now.
        starting: the marks of those that are just being started, whose numbers nobody has yet.
    """

    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    starting: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """A fork has no children."""
        self.running.clear()
        self.starting.clear()

    def end_all(self) -> None:
        """Kill them: those that are being started when they have a number, or by their mark."""
        until = time.monotonic() + _LONGEST_START
        while True:
            for process in list(self.running):
                _Running(process).kill()
            if not self.starting or time.monotonic() > until:
                break
            time.sleep(0.001)
        for mark in list(self.starting):
            _end_lost(mark)


@functools.cache
def _children() -> _Children:
    """This process's."""
    children = _Children()
    threads.at_end(children.end_all)
    os.register_at_fork(after_in_child=children.clear)
    return children


def compiling() -> bool:
    """Whether compilers of this process run now, and take its processors."""
    return bool(_children().running or _children().starting)


def run_all(
    commands: Sequence[Sequence[str]], *, limit: float, folder: Path | None = None, errors: bool = True
) -> list[Ended]:
    """Run commands at the same time.

    Arguments:
        limit: seconds that all of them together may take.
        folder: where they run, and where they put temporary files.
        errors: keep what they print to stderr too.

    Raises:
        OSError: one cannot be started.
        Ending: the process ends, and this is not the thread that ends it.
    """
    threads.check_ending()
    environment = {**os.environ, "LC_ALL": "C"}  # so that messages can be read back
    if folder is not None:
        environment["TMPDIR"] = str(folder)
    environment[_MARK] = mark = secrets.token_hex(8)
    deadline = time.monotonic() + limit
    running: list[_Running] = []
    children = _children()
    children.starting.add(mark)
    try:
        for command in commands:
            process = subprocess.Popen(
                list(command), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if errors else subprocess.DEVNULL, start_new_session=True, bufsize=0,
            )  # fmt: skip
            children.running.add(process)
            running.append(_Running(process))
            if PATIENT.get():
                with contextlib.suppress(OSError, AttributeError):
                    os.setpriority(os.PRIO_PGRP, process.pid, _LOW)
        children.starting.discard(mark)
        late = _attend(running, deadline)
        for item in running:
            item.end()
        threads.check_ending()  # then they were killed, and have not failed
        return [
            Ended(tuple(command), item.process.returncode, b"".join(item.output).decode(errors="replace"), item in late)
            for command, item in zip(commands, running)
        ]
    except BaseException:
        _end_lost(mark)
        raise
    finally:
        children.starting.discard(mark)
        for item in running:
            item.end()
            children.running.discard(item.process)


def _end_lost(mark: str) -> None:
    """Kill commands whose numbers nobody has: an interrupt came between the start of one and the end of `Popen`."""
    sign = f"{_MARK}={mark}".encode()
    until = time.monotonic() + _LONGEST_START
    starting = True
    while starting and time.monotonic() < until:
        starting = False
        for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
            with contextlib.suppress(OSError):
                environment = files.read(f"/proc/{name}/environ", _PROC_LIMIT)
                if sign in environment:
                    os.killpg(os.getpgid(int(name)), signal.SIGKILL)
                    os.waitpid(int(name), 0)
                elif not environment:
                    starting = starting or _is_starting(name)


def _is_starting(pid: str) -> bool:
    """Whether a process without an environment is a child of this one that the system is just loading."""
    state, parent = files.read(f"/proc/{pid}/stat", _PROC_LIMIT).rpartition(b")")[2].split()[:2]
    return int(parent) == os.getpid() and state not in (b"Z", b"X")


def _attend(running: list[_Running], deadline: float) -> list[_Running]:
    """Read what commands print until they end; those that have not ended at the deadline."""
    with selectors.DefaultSelector() as selector:
        for item in running:
            assert item.process.stdout is not None
            os.set_blocking(item.process.stdout.fileno(), False)
            selector.register(item.process.stdout, selectors.EVENT_READ, item)
        left, beat, pause = list(running), time.monotonic(), 0.0002
        while left and time.monotonic() < deadline:
            for key, _ in selector.select(min(_TICK, max(deadline - time.monotonic(), 0))):
                key.data.take()
                if not key.data.open:
                    selector.unregister(key.fileobj)
            for item in list(left):
                if item.exited():
                    if item.open:
                        item.take()
                    left.remove(item)
            if time.monotonic() - beat > _TICK:
                beat = time.monotonic()
                kernel_directories.beat()
            if left and not selector.get_map():
                time.sleep(pause)  # it closed its output and ends, or goes on
                pause = min(2 * pause, 0.01)
    return left
