"""Runs Python programs in forks of one process that has imported torch: a new process takes seconds for that.

`run([path, *arguments])`, `run(["-m", module, ...])` and `run(["-c", code, ...])` stand for
`subprocess.run([sys.executable, ...], capture_output=True, text=True)`. Nothing of argand is imported before the fork, so
that its settings come from the environment given. Not for what torch reads from the environment when it is imported.
With `nested`, what the program runs by this module's `run` is forked from a process that was as fresh as its own. With
`imported`, it is forked from one that has imported more, for programs that are not about what they import: argand's
"compiler"; what torch has for "ranks" too; or the compiler and Triton's "interpreter".
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
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


class _Server:
    """The process from which others are forked."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self.requests, self.answers = requests, answers

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer


def _started(imported: str) -> _Server:
    """A new process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ARGAND_", "TORCH"))}
    if imported == "interpreter":
        env["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    process = subprocess.Popen(
        [sys.executable, __file__, imported],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    requests, answers = process.stdin, process.stdout
    assert requests is not None and answers is not None

    def close() -> None:
        requests.close()
        process.wait(60)

    atexit.register(close)
    return _Server(requests, answers)


_servers: dict[tuple[int, str], _Server] = {}  # by process, and by what else they have imported


def own_server(imported: str = "") -> _Server:
    """The server of this process, which is started where there is none."""
    key = os.getpid(), imported
    if key not in _servers:
        _servers[key] = _started(imported)
    return _servers[key]


def lend(server: _Server) -> None:
    """Let this process, a fork of the one that started the server and now waits, use it."""
    _servers[os.getpid(), ""] = server


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 280.0,
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


def _serve(imported: str) -> None:
    import gc

    import torch  # noqa: F401 - what takes the time

    if imported:
        for name in _OF_RANKS if imported == "ranks" else _OF_TRITON if imported == "interpreter" else ():
            importlib.import_module(name)
        importlib.import_module("argand.debug.trial.process").warm()
        importlib.import_module("argand.backends.programs.generation")  # as the first compile does
        seed_without_stacks()
    gc.collect()
    gc.freeze()  # else what a child collects at its end is all of torch, of which it gets a copy page by page (0.4 s)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _answer(sys.stdin, answers)


def _answer(requests: IO[str], answers: IO[str]) -> NoReturn:
    """Run what is asked for, each in a fork."""
    for line in iter(requests.readline, ""):
        request = json.loads(line)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(error.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                answers.close()
                _end(lambda: _become(request))
            code = _waited(child, time.monotonic() + request["timeout"])
            texts = []
            for file in (output, error):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        print(json.dumps({"code": code, "stdout": texts[0], "stderr": texts[1]}), file=answers, flush=True)
    os._exit(0)


def _end(program: Callable[[], None]) -> NoReturn:
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


def _waited(child: int, deadline: float) -> int | None:
    """The exit code of a process; None when it was killed at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _own_fork() -> None:
    """Fork the server of a program that runs others."""
    pipes = os.pipe(), os.pipe()
    (asked, ask), (told, tell) = pipes
    helper = os.fork()
    if helper == 0:
        os.close(ask), os.close(told)
        _answer(os.fdopen(asked), os.fdopen(tell, "w"))
    os.close(asked), os.close(tell)
    server, owner = _Server(os.fdopen(ask, "w"), os.fdopen(told)), os.getpid()

    def close() -> None:
        if os.getpid() == owner:  # not a fork of it
            server.requests.close()
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
    _serve(sys.argv[1])
