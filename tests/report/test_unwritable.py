"""Traces, logs and debug directories that cannot be written never stop a program: one warning each says so."""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand import events
from forks import fork

SETTINGS: dict[str, dict[str, Any]] = {
    "trace_dir": {},
    "chrome_trace": {},
    "metrics_file": {},
    "debug_dir_root": {"trace.enabled": True},
    "base_dir": {"trace.enabled": True, "replay_record_enabled": True},
}


def run_compiled(settings: dict[str, Any]) -> list[str]:
    """Compile and run two functions under settings; the warnings."""
    x = torch.randn(8, 9)
    with warnings.catch_warnings(record=True) as told, argand.config.config.patch(settings):
        warnings.simplefilter("always")
        for number in range(2):

            def function(x: torch.Tensor) -> torch.Tensor:
                return torch.softmax(x * number + 1.5, -1)

            backend = "native" if "trace.enabled" in settings else "eager"
            torch.testing.assert_close(argand.compile(function, backend=backend)(x), function(x))
        argand.reset()
    return [str(w.message) for w in told]


def in_child(settings: dict[str, Any], prepare: Callable[[], None]) -> str:
    """What a forked process says: "right" and its warnings."""
    receive, send = os.pipe()
    child = fork()
    if child == 0:
        try:
            devnull = os.open(os.devnull, os.O_WRONLY)
            prepare()
            os.dup2(devnull, 2)
            told = run_compiled(settings)
            os.write(send, f"right {len(told)} {told}".encode()[:60000])
        except BaseException as error:
            os.write(send, f"wrong {type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(send)
    end = time.monotonic() + 100
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    os.set_blocking(receive, False)
    try:
        return os.read(receive, 1 << 16).decode()
    except BlockingIOError:
        return "hangs"
    finally:
        os.close(receive)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What compiling imports, once for all children."""
    run_compiled({"trace.enabled": True, "debug_dir_root": "/dev/null/x"})


def limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


PLACES = {
    "in /proc": lambda path: "/proc/no/such",
    "below a file": lambda path: "/etc/passwd/x",
    "a FIFO": lambda path: os.mkfifo(path) or str(path),
    "a file or a directory": None,
    "a full device": lambda path: "/dev/full",
    "a link to itself": lambda path: os.symlink(path, path) or str(path),
    "a name too long": lambda path: "/tmp/" + "x" * 5000,
}


@pytest.mark.parametrize(("setting", "place"), sweeps.chessboard(SETTINGS, PLACES))
def test_place_that_cannot_be_written(setting: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    make = PLACES[place]
    if make is None:
        path.mkdir() if setting.endswith(("_file", "_trace")) else path.write_text("x")
        where = str(path)
    else:
        where = make(path)
    said = in_child({setting: where, **SETTINGS[setting]}, lambda: None)
    assert said.startswith(("right 0", "right 1 ")), said


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_more_can_be_written(setting: str, tmp_path: Path) -> None:
    x = torch.randn(8, 9)
    with argand.config.config.patch(cache_dir=str(tmp_path / "cache")):  # so that compiling itself has no trouble
        assert run_compiled({}) == []
        del x
        said = in_child({setting: str(tmp_path / "p"), **SETTINGS[setting]}, limited)
    assert said.startswith(("right 0", "right 1 ", "right 2 ")), said


def test_a_sink_that_fails_is_told_of_once() -> None:
    def broken(event: events.Event) -> None:
        raise OSError(28, "No space left on device")

    remove = events.bus.subscribe(broken)
    try:
        assert len(run_compiled({})) == 1
    finally:
        remove()
