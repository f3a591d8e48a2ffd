"""Runs a job in a new process, where a fork cannot do what its parent does (a GPU is in use).

A job is the name of a function ("module:function") and plain data for it; the function prepares what is tried, and
returns that to be called. The job is run by a fork of a *server*, a process that has imported everything and used no
GPU (starting Python, torch and argand takes seconds, a fork milliseconds), or by a Python of its own:
`python -m argand.debug.trial.process` with no argument is a server, with arguments it is a job.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import mmap
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from argand import events
from argand.debug.trial.isolation import Limits, call, detach, end_of, kill, limit_memory, stage_text, use_stage
from argand.debug.trial.outcome import Outcome, outcome_of_process
from argand.locks import fork_safe_lock

Job = tuple[str, dict[str, Any]]
_SETTINGS = ("ARGAND_REPRO_AFTER", "TORCHDYNAMO_REPRO_AFTER")  # would start a search in the search
_STARTING = 60.0  # seconds that imports may take besides the attempt
_POLL = 0.005  # seconds


def run_job(job: Job, limits: Limits, server: Server | None = None) -> Outcome:
    """Run a job in a new process.

    Arguments:
        server: whose fork the process may be.
    """
    with tempfile.TemporaryDirectory(prefix="argand-minify-") as name:
        folder = Path(name)
        (folder / "stage").write_bytes(bytes(4096))
        start, seconds = time.monotonic(), limits.attempt_seconds + _STARTING
        request = {"job": job, "folder": name, "cwd": os.getcwd(), "seconds": seconds, "memory": limits.memory}
        answer = server.ask(request) if server is not None else None
        if answer is None:
            answer = _in_a_python_of_its_own(job, folder, seconds, limits.memory)
        printed, data = "", b""
        with contextlib.suppress(OSError), open(folder / "output", "rb") as output:
            printed = end_of(output)
        with contextlib.suppress(OSError):
            data = (folder / "outcome.json").read_bytes()
        stage = stage_text((folder / "stage").read_bytes())
        took = time.monotonic() - start
        return outcome_of_process(data, answer["ended"], answer["status"], took, printed, stage)


def _in_a_python_of_its_own(job: Job, folder: Path, seconds: float, memory: int) -> dict[str, Any]:
    """Whether it "ended" by itself, and its "status" as of `os.waitpid`."""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(memory), json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment(),
        )
        ended = True
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            kill(process.pid)
            process.wait()
    code = process.returncode
    return {"ended": ended, "status": -code if code < 0 else code << 8}


class Server:
    """The process that forks, as seen by the one that asks.

    Arguments:
        environment: of the attempts.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.lock = fork_safe_lock()
        self.process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,  # an interrupt is for the one that asks
        )
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """How an attempt ended: "ended" by itself, exit "status" as of `os.waitpid`. None where the server is gone."""
        with self.lock:
            if self.process is None or self.process.stdin is None or self.process.stdout is None:
                return None
            try:
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
                answer: dict[str, Any] = json.loads(self.process.stdout.readline())
            except (OSError, ValueError):
                self.close()
                return None
            except BaseException:  # interrupted: what comes would be taken for the next answer
                self.close()
                raise
            return answer

    def close(self) -> None:
        """End it, and what it runs."""
        process, self.process = self.process, None
        if process is not None:
            kill(process.pid)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was written to one that is gone cannot be sent
                        stream.close()


@functools.cache
def server_of(process: int) -> Server:
    """The server of this process, `process` being its id."""
    return Server(environment())


def environment() -> dict[str, str]:
    """What attempts find in the environment."""
    return {name: value for name, value in os.environ.items() if name not in _SETTINGS}


# ------------------------------------------------------------------------------- in the new process


def serve() -> None:
    """Answer a line of JSON for each attempt, with how its fork ended, until nobody is left to ask."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # nothing that an import prints is an answer
        os.dup2(nothing, stream)
    importlib.import_module("argand.debug.repro")
    warm()
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _attempt(request)
        deadline = time.monotonic() + request["seconds"]
        done = False
        while not done and time.monotonic() < deadline:
            done = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            time.sleep(0 if done else _POLL)
        kill(child)  # and what it has started, while its number is still its own
        answers.write(json.dumps({"ended": done, "status": os.waitpid(child, 0)[1]}) + "\n")
        answers.flush()


def warm() -> None:
    """Import what every child needs, before it is forked."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # torch imports it at the first meta kernel
    importlib.import_module("argand.capture.driver.frame")  # argand imports it at the first captured frame
    for name in ("autograd", "passes", "lower", "schedule", "codegen", "runtime"):
        package = importlib.import_module(f"argand.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"argand.{name}."):
            if "triton" not in module.name:
                importlib.import_module(module.name)
    _capture_once()
    gc.collect()
    gc.freeze()  # children need not look at what is there already, nor copy its pages


def _capture_once() -> None:
    """What the first capture of a process finds out of torch and of tensors is half of the time of most children."""
    api = importlib.import_module("argand.api")
    unmute = events.bus.mute()  # it belongs in no log
    try:
        api.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))
        api.reset()
    finally:
        unmute()


def _attempt(request: dict[str, Any]) -> None:
    """The server's child; does not return."""
    code = 70
    try:
        folder = Path(request["folder"])
        detach(os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        os.chdir(request["cwd"])
        do_job(request["job"], folder, request["memory"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def do_job(job: Job, folder: Path, memory: int) -> None:
    """Run a job in this process, and write its outcome into the folder."""
    faulthandler.enable()
    with open(folder / "stage", "r+b") as file:
        use_stage(mmap.mmap(file.fileno(), 4096))
    name, given = job
    attempt = named(name)(**given)
    limit_memory(memory)
    (folder / "outcome.json").write_text(json.dumps(asdict(call(attempt))))


def name_of(function: Callable[..., Any]) -> str:
    """What `named` finds a function of a module by."""
    return f"{function.__module__}:{function.__name__}"


def named(name: str) -> Callable[..., Any]:
    """The function of this name, "module:function"."""
    function: Callable[..., Any] = pkgutil.resolve_name(name)
    return function


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    else:
        do_job(json.loads(sys.argv[3]), Path(sys.argv[1]), int(sys.argv[2]))
