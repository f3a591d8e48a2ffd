"""Locks of a thread that is not there in a forked child."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

import warm
from argand._core import imports
from argand.locks import fork_safe_lock

SRC = Path(__file__).resolve().parents[2] / "src" / "argand"
# These begin anew in a child by themselves, or are names that capture knows.
OTHERS = {
    "locks.py",
    "report/tracefile.py",
    "report/chromium.py",
    "capture/natives/library_functions.py",
}


def test_lock_that_another_thread_held_is_free_in_a_child() -> None:
    lock, held, ended = fork_safe_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=100) else 1)
    ended.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock = fork_safe_lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock._is_owned() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_every_lock_of_argand_is_one() -> None:
    for path in SRC.rglob("*.py"):
        if str(path.relative_to(SRC)) not in OTHERS:
            assert not re.search(r"\bthreading\.R?Lock\(", path.read_text()), path


PROGRAM = """
import faulthandler, os, threading, time, torch, argand
def f(x): return (x + 1).sum()
x = torch.ones(3)
f(x)  # a child that is forked while another thread has torch look up an operator for the first time waits for ever
thread = threading.Thread(target=lambda: argand.compile(f, backend="eager")(x))  # imports the compiler
thread.start()
children = []
for _ in range(12):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(150)
        os._exit(0 if argand.compile(f, backend="eager")(x) == 6 else 1)
    children.append(child)
thread.join()
end = time.monotonic() + 200
while children and time.monotonic() < end:
    children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
    time.sleep(0.01)
for child in children:
    os.kill(child, 9)
print("hanging children:", len(children))
"""


def test_child_forked_while_another_thread_imports_the_compiler() -> None:
    done = warm.run(["-c", PROGRAM])
    assert done.stdout == "hanging children: 0\n", done.stderr


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import argand

    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.3)\nvalue = 1\n")
    monkeypatch.setattr(argand, "__path__", [*argand.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "argand.slow", raising=False)
    return "argand.slow"


@pytest.mark.parametrize("late", [False, True])
def test_fork_waits_for_an_import_of_another_thread(
    slow_module: str, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """One that begins too late for that is begun anew in the child."""
    imports.wait_at_forks()
    monkeypatch.setattr(imports, "_SECONDS", 0.0 if late else 5.0)
    thread = threading.Thread(target=importlib.import_module, args=(slow_module,))
    thread.start()
    while slow_module not in sys.modules:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        importlib.import_module(slow_module)
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_SECONDS", 0.05)
    monkeypatch.setattr(imports, "_others", lambda: iter(["argand"]))
    start = time.monotonic()
    imports._wait()
    assert 0.04 < time.monotonic() - start < 30  # seconds; on a loaded machine
