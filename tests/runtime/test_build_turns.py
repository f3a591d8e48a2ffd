"""Ranks of a job take turns to make what all can load; nobody waits long for one that died, was stopped or is slow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from argand.config import config
from argand.runtime import build_turns, cache, kernel_directories

HOLDER = """
import sys, time
from argand.config import config
from argand.runtime import build_turns
config.cache_dir = sys.argv[1]
build_turns.others = lambda: True
with build_turns.turn("abc") as turn:
    print(turn.waited, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """This process is one of several of a job."""
    monkeypatch.setattr(build_turns, "others", lambda: True)
    with config.patch(cache_dir=str(tmp_path / "c")):
        yield tmp_path / "c"


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the turn."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "False\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_alone_nobody_takes_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_turns, "others", lambda: False)
    with build_turns.turn("abc") as turn:
        assert turn is None and not build_turns.held()


def test_a_process_does_not_wait_for_itself() -> None:
    with build_turns.turn("abc") as turn, build_turns.turn("abc") as again, build_turns.turn("def") as other:
        assert turn is not None and not turn.waited and build_turns.held()
        assert again is None
        assert other is not None and not other.waited
    assert not build_turns.held()
    with build_turns.turn("abc") as turn:
        assert turn is not None and not turn.waited


@pytest.mark.parametrize("has_compiler", [False, True])
def test_who_has_captured_before_goes_first(monkeypatch: pytest.MonkeyPatch, has_compiler: bool) -> None:
    """Another process gives way to it for a moment; that ends when somebody has the turn."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (cache.directory() / "def.lock").touch()

    monkeypatch.setattr(build_turns, "_followed", lambda: {"abc"})
    monkeypatch.setattr(build_turns, "_CAPTURING", "sys" if has_compiler else "nowhere.imported")
    monkeypatch.setattr(build_turns, "_HEAD_START", 60.0)
    monkeypatch.setattr(build_turns.time, "sleep", sleep)
    with build_turns.turn("def") as turn:
        assert turn is not None and not turn.waited
    assert len(slept) == (not has_compiler)


def test_nobody_waits_for_what_none_can_load() -> None:
    with build_turns.turn("abc") as turn:
        assert turn is not None
        turn.useless()
    with build_turns.turn("abc") as turn:
        assert turn is None


def test_what_was_waited_for_is_made_by_all_at_once() -> None:
    """A turn that was waited for is over when it is given: the next one does not wait for it."""
    path = cache.directory() / "abc.lock"
    over = threading.Event()
    with contextlib.ExitStack() as held:
        assert held.enter_context(kernel_directories.locked(path, 0.0)) is not None
        threading.Timer(0.2, over.set).start()
        release = threading.Thread(target=lambda: (over.wait(), held.close()))
        release.start()
        with build_turns.turn("abc") as turn:
            assert turn is not None and turn.waited and not build_turns.held()
            with kernel_directories.locked(path, 0.0) as free:
                assert free is not None
        release.join()


def test_a_turn_ends_with_its_process(job: Path) -> None:
    with holder(job) as process:
        threading.Timer(0.2, process.kill).start()
        with build_turns.turn("abc") as turn:
            assert turn is not None
    with build_turns.turn("abc") as turn:
        assert turn is not None and not turn.waited


def test_nobody_waits_for_a_process_that_was_stopped(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_directories, "PATIENCE", 0.2)
    with holder(job) as process:
        process.send_signal(signal.SIGSTOP)
        with build_turns.turn("abc") as turn:
            assert turn is not None and turn.waited and process.poll() is None


def test_nobody_waits_longer_than_the_longest(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_turns, "LONGEST", 0.3)
    with holder(job) as process, build_turns.turn("abc") as turn:
        assert turn is not None and turn.waited and process.poll() is None


def test_without_a_cache_nobody_waits() -> None:
    with config.patch(cache_dir="/proc/nowhere"), build_turns.turn("abc") as turn:
        assert turn is None
