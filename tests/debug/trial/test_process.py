"""Attempts in forks of a process that has imported everything: what is asked where a GPU is in use."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import fx

import warm
from argand.debug.minify import BackendCheck, Fingerprint, Limits, Program
from argand.debug.minify.attempts import run_file
from argand.debug.minify.files import Writer
from argand.debug.trial.process import Server, environment
from debug.minify_helpers import graph_for


@pytest.fixture(autouse=True)
def quick_pythons() -> None:
    """None here."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(environment())
    yield made
    made.close()


def backend_that(kind: str) -> object:
    def behaves(gm: fx.GraphModule, inputs: list) -> object:
        if kind == "raises":
            raise ValueError("no relu today")
        if kind == "dies":
            os.kill(os.getpid(), 11)
        if kind == "exits":
            os._exit(3)
        if kind == "hangs":
            subprocess.Popen(["sleep", "1000.625"])  # no other test sleeps so long
            time.sleep(1000)
        print("compiled")
        return gm

    return behaves


def outcome(server: Server | None, kind: str, folder: Path, seconds: float = 60.0) -> object:
    program = Program(*graph_for(lambda x: torch.relu(x), torch.ones(2)))
    path = Writer(folder, BackendCheck(backend_that(kind)), Fingerprint("unknown")).repro(program)
    text = path.read_text()
    assert "def behaves" in text
    return run_file(path, Limits(attempt_seconds=seconds), server)


@pytest.mark.parametrize(
    ("kind", "found", "error"),
    [
        ("works", "passed", ""),
        ("raises", "raised", "ValueError"),
        ("dies", "crashed", "SIGSEGV"),
        ("exits", "crashed", "exit"),
    ],
)
def test_outcomes_are_those_of_a_process_of_its_own(
    kind: str, found: str, error: str, server: Server, tmp_path: Path
) -> None:
    made = outcome(server, kind, tmp_path)
    assert (made.kind, made.error) == (found, error), made
    assert server.process is not None and server.process.poll() is None


def test_what_hangs_is_ended_with_what_it_started(server: Server, tmp_path: Path) -> None:
    made = outcome(server, "hangs", tmp_path, seconds=-57.0)  # 60 are added for imports
    assert (made.kind, made.error) == ("hung", "timeout"), made
    end = time.monotonic() + 100  # what was killed is there until the system has come to it
    while left := [pid for pid in _sleeping() if _session_of_nobody(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert outcome(server, "works", tmp_path).kind == "passed"


def _sleeping() -> list[str]:
    return subprocess.run(["pgrep", "-f", "sleep 1000.625"], capture_output=True, text=True).stdout.split()


def _session_of_nobody(pid: str) -> bool:
    """Whether a process's session has lost its leader: an attempt's that was ended without it."""
    try:
        return not Path(f"/proc/{os.getsid(int(pid))}").exists()
    except ProcessLookupError:
        return False


def test_attempts_are_forks_of_one_process_that_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome(server, "works", tmp_path)
    before = server.process

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a Python of its own takes seconds")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for _ in range(3):
        assert outcome(server, "works", tmp_path).kind == "passed"
    assert server.process is before and before is not None and before.poll() is None


def test_a_server_that_is_gone_is_done_without(tmp_path: Path) -> None:
    made = Server(environment())
    assert made.process is not None
    made.process.kill()
    made.process.wait()
    assert outcome(made, "raises", tmp_path).error == "ValueError"
    assert made.process is None and outcome(made, "works", tmp_path).kind == "passed"


def test_it_ends_when_nobody_is_left_to_ask() -> None:
    code = (
        "import json, os\n"
        "from argand.debug.trial.process import Server, environment\n"
        "print(json.dumps(Server(environment()).process.pid), flush=True)\n"
        "os._exit(0)"
    )
    pid = json.loads(warm.run(["-c", code], check=True).stdout)
    deadline = time.monotonic() + 100
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]:
            break  # ended; nobody has asked how
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{pid}").exists()
