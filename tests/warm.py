"""Runs Python programs in forks of one process that has imported torch: a new process takes seconds for that.

`run([path, *arguments])`, `run(["-m", module, ...])` and `run(["-c", code, ...])` stand for
`subprocess.run([sys.executable, ...], capture_output=True, text=True)`. Nothing of argand is imported before the fork, so
that its settings come from the environment given. Not for what torch reads from the environment when it is imported.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class _Server:
    """The process from which others are forked."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("ARGAND_", "TORCH"))}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(60)


_servers: dict[int, _Server] = {}  # by process: a worker of the tests has one


def own_server() -> _Server:
    """The server of this process, which is started where there is none."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _Server()
    return _servers[os.getpid()]


def lend(server: _Server) -> None:
    """Let this process, a fork of the one that started the server and now waits, use it."""
    _servers[os.getpid()] = server


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 280.0,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program.

    Arguments:
        command: what follows the name of the interpreter.
        cwd: of the program; by default this process's.
        env: the whole environment; by default this process's.
        timeout: in seconds.
        check: an exit code that is not 0 is an error.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
        subprocess.CalledProcessError: `check`, and it failed.
    """
    server = own_server()
    words = [str(word) for word in command]
    request = {"command": words, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
    answer = server.ask({**request, "timeout": timeout})
    if answer["code"] is None:
        raise subprocess.TimeoutExpired(words, timeout, answer["stdout"], answer["stderr"])
    done = subprocess.CompletedProcess(words, answer["code"], answer["stdout"], answer["stderr"])
    if check:
        done.check_returncode()
    return done


# ------------------------------------------------------------------- in the server


def _serve() -> None:
    import gc

    import torch  # noqa: F401 - what takes the time

    gc.collect()
    gc.freeze()  # else what a child collects at its end is all of torch, of which it gets a copy page by page (0.4 s)
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(error.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                pipe.close()
                return _become(request)
            code = _waited(child, time.monotonic() + request["timeout"])
            texts = []
            for file in (output, error):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        print(json.dumps({"code": code, "stdout": texts[0], "stderr": texts[1]}), file=pipe, flush=True)
    os._exit(0)


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


def _become(request: dict[str, Any]) -> None:
    """Make this process what `python` with these arguments is."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    first, *rest = request["command"]
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
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
    _serve()
