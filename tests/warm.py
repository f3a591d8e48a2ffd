"""Runs Python programs in forks of one process that has imported torch: a new process takes seconds for that.

`run([path, *arguments])`, `run(["-m", module, ...])` and `run(["-c", code, ...])` stand for
`subprocess.run([sys.executable, ...], capture_output=True, text=True)`. Nothing of argand is imported before the fork, so
that its settings come from the environment given. Not for what torch reads from the environment when it is imported.
With `nested`, what the program runs by this module's `run` is forked from a process that was as fresh as its own. With
`imported`, it is forked from one that has imported more, for programs that are not about what they import: argand's
"compiler"; what torch has for "ranks" too; or the compiler and Triton's "interpreter".

The process listens at a socket, and any number of programs runs at the same time. Where nothing is shared each process
that asks starts its own; forks of one that called `share` use that one's.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

KINDS = ("", "compiler", "ranks", "interpreter")


class _Server:
    """The process from which others are forked: it listens at `address`, and ends when `lifeline` is closed."""

    def __init__(self, address: bytes, lifeline: IO[bytes]) -> None:
        self.address, self.lifeline = address, lifeline

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw") as stream:
            connection.connect(self.address)
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            answer: dict[str, Any] = json.loads(stream.readline())
            return answer


def _listener() -> socket.socket:
    """A socket with a name of its own, which is in no folder."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")
    listening.listen(256)
    return listening


def _started(imported: str) -> _Server:
    """A new process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ARGAND_", "TORCH"))}
    if imported == "interpreter":
        env["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    with _listener() as listening:
        process = subprocess.Popen(
            [sys.executable, __file__, imported, str(listening.fileno())],
            stdin=subprocess.PIPE, env=env, pass_fds=[listening.fileno()],
        )  # fmt: skip
        address = listening.getsockname()
    lifeline, owner = process.stdin, os.getpid()
    assert lifeline is not None

    def close() -> None:
        if os.getpid() == owner:  # not a fork of it
            lifeline.close()
            process.terminate()  # where another still holds the lifeline
            process.wait(60)

    atexit.register(close)
    return _Server(address, lifeline)


# By process (0: what the forks of this one use, too), and by what else they have imported.
_servers: dict[tuple[int, str], _Server] = {}


def share() -> None:
    """Start all servers now, for this process and its forks."""
    for imported in KINDS:
        if imported != "interpreter" or importlib.util.find_spec("triton") is not None:
            _servers[0, imported] = _started(imported)


def own_server(imported: str = "") -> _Server:
    """The server of this process, which is started where there is none."""
    key = os.getpid(), imported
    if key not in _servers:
        _servers[key] = _servers.get((0, imported)) or _started(imported)
    return _servers[key]


def lend(server: _Server) -> None:
    """Let this process, a fork of the one that started the server, use it."""
    _servers[os.getpid(), ""] = server


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 500.0,
    check: bool = False,
    nested: bool = False,
    imported: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a Python program.

    Arguments:
        command: what follows the name of the interpreter.
        cwd: of the program; by default this process's.
        env: the whole environment; by default this process's.
        timeout: in seconds.
        check: an exit code that is not 0 is an error.
        nested: the program runs others by this function.
        imported: "compiler", "ranks" or "interpreter": the program finds it imported, and settings as its environment
            says.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
        subprocess.CalledProcessError: `check`, and it failed.
    """
    server = own_server(imported)
    words = [str(word) for word in command]
    request = {"command": words, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
    answer = server.ask({**request, "timeout": timeout, "nested": nested})
    if answer["code"] is None:
        raise subprocess.TimeoutExpired(words, timeout, answer["stdout"], answer["stderr"])
    done = subprocess.CompletedProcess(words, answer["code"], answer["stdout"], answer["stderr"])
    if check:
        done.check_returncode()
    return done


def rarely_look_at_old_objects() -> None:
    """Young garbage is collected as ever; full collections, a fifteenth of what tests computed, are a tenth as many."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)


def seed_without_stacks() -> None:
    """`torch.manual_seed` notes the text of its whole stack three times, for devices that are not there."""
    for name in ("cuda", "xpu", "mtia"):
        module = sys.modules.get(f"torch.{name}")
        if module is not None and hasattr(module, "traceback"):
            module.traceback = types.SimpleNamespace(format_stack=list)  # type: ignore[attr-defined]


# ------------------------------------------------------------------- in the server

# DistributedDataParallel imports the first when one is made.
_OF_RANKS = (
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
)
_OF_TRITON = ("triton.language.extra.libdevice", "triton.experimental.gluon", "argand.codegen.triton.kernel")


def _serve(imported: str, listening: int) -> None:
    import torch  # noqa: F401 - what takes the time

    if imported:
        for name in _OF_RANKS if imported == "ranks" else _OF_TRITON if imported == "interpreter" else ():
            importlib.import_module(name)
        importlib.import_module("argand.debug.trial.process").warm()
        importlib.import_module("argand.backends.programs.generation")  # as the first compile does
        _compile_once()
        seed_without_stacks()
        rarely_look_at_old_objects()
    gc.collect()
    gc.freeze()  # else what a child collects at its end is all of torch, of which it gets a copy page by page (0.4 s)
    _answer(socket.socket(fileno=listening), 0)


def _compile_once() -> None:
    """Find out what each process finds out when it first compiles: half of the time of a small program."""
    import torch

    import argand
    from argand import events

    unmute = events.bus.mute()  # logs are the programs' own
    with tempfile.TemporaryDirectory() as folder, argand.config.patch({"cache_dir": folder}):
        x = torch.ones(3, 3, requires_grad=True)
        argand.compile(lambda x: x.sin() @ x)(x).sum().backward()
    argand.reset()
    unmute()
    events.bus._counts.clear()


class _Running:
    """A program that was asked for, from its fork on."""

    def __init__(self, listening: socket.socket) -> None:
        self.connection = connection = listening.accept()[0]
        with connection.makefile("r") as stream:
            request = json.loads(stream.readline())
        self.deadline = time.monotonic() + request["timeout"]
        self.output, self.error = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.child = os.fork()
        if self.child == 0:
            listening.close()
            os.dup2(self.output.fileno(), 1)
            os.dup2(self.error.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            end_with(lambda: _become(request))

    def answered(self) -> bool:
        """Whether it ended, which was told then; at its deadline it is killed, and has no exit code."""
        done, status = os.waitpid(self.child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        if not done and time.monotonic() < self.deadline:
            return False
        if not done:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
        texts = []
        for file in (self.output, self.error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        with self.connection, contextlib.suppress(OSError):  # who asked may be gone
            self.connection.sendall(json.dumps({"code": code, "stdout": texts[0], "stderr": texts[1]}).encode() + b"\n")
        return True


def _answer(listening: socket.socket, lifeline: int) -> NoReturn:
    """Run what is asked for, each in a fork, until the lifeline is closed."""
    running: list[_Running] = []
    while True:
        ready = select.select([listening, lifeline], [], [], 0.01 if running else None)[0]
        if listening in ready:
            running.append(_Running(listening))
        elif ready:
            os._exit(0)
        running = [each for each in running if not each.answered()]


def end_with(program: Callable[[], None]) -> NoReturn:
    """Run a program to its end, which is the process's: to take torch apart, as Python does there, takes 0.2 s."""
    code: object = 0
    try:
        program()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # threads that are no daemons are waited for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or the program's own
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _own_fork() -> None:
    """Fork the server of a program that runs others."""
    listening = _listener()
    held, holds = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(holds)
        _answer(listening, held)
    os.close(held)
    server, owner = _Server(listening.getsockname(), os.fdopen(holds, "wb")), os.getpid()
    listening.close()

    def close() -> None:
        if os.getpid() == owner:  # not a fork of it
            server.lifeline.close()
            os.waitpid(helper, 0)

    atexit.register(close)
    lend(server)
    sys.modules["warm"] = sys.modules["__main__"]


def _become(request: dict[str, Any]) -> None:
    """Make this process what `python` with these arguments is."""
    if request["nested"]:
        _own_fork()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    first, *rest = request["command"]
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if "argand" in sys.modules:
        sys.modules["argand"].config.reset()  # reads the environment
    own = str(Path(__file__).parent)
    sys.path[:] = [place for place in sys.path if place != own]
    sys.path[:0] = [place for place in places if place not in sys.path]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    try:
        if first == "-m":
            import runpy

            sys.argv[:] = rest
            sys.path.insert(0, os.getcwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            return
        source, name = (rest[0], "<string>") if first == "-c" else (Path(first).read_text(), first)
        sys.argv[:] = ["-c", *rest[1:]] if first == "-c" else [first, *rest]
        sys.path.insert(0, "" if first == "-c" else str(Path(first).resolve().parent))
        if first != "-c":
            main.__file__ = first
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        places_of_it = error.__traceback__
        error.__traceback__ = places_of_it.tb_next if places_of_it is not None else None  # not of this file
        traceback.print_exception(error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
