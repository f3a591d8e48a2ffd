"""The processes that run the tests: what becomes of failures, warnings, and a process that ends in the midst of a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, warnings, pytest, torch
big = torch.ones(1 << 20).bfloat16()  # several threads would do it
@pytest.fixture(scope="module")
def shared():
    return [os.getpid()]
def test_first(shared, tmp_path):
    assert tmp_path.is_dir() and (big + 1).sum() > 0
def test_same_process(shared):
    assert shared == [os.getpid()]
def test_wrong():
    print("printed by the test")
    warnings.warn("said by the test", DeprecationWarning)
    assert 1 == 2
def test_dies():
    os.kill(os.getpid(), 9)
def test_after():
    pass
"""


STUCK = """
import signal, time
def test_stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as one that waits in C for what never comes
    time.sleep(600)
"""


def _ran(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        Path(__file__).parents[1] / "workers.py",
        "2",
        "-p",
        "no:cacheprovider",
        folder,
        *options,
    ]
    env = {name: value for name, value in os.environ.items() if name != "CI"}  # with which pytest says more
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=400)


def test_reports_are_those_of_one_process(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py", "test_three.py"):
        (tmp_path / name).write_text(TESTS)
    (tmp_path / "test_zero.py").write_text(STUCK)
    done = _ran(tmp_path, "-o", "timeout=10")
    assert done.returncode == 1, done.stderr
    assert re.search(r"7 failed, 9 passed, 3 warnings in ", done.stdout), done.stdout
    assert "ended (it was stuck: Aborted): test_zero.py::test_stuck" in done.stdout, done.stdout
    assert "in test_stuck" in done.stderr
    assert done.stdout.count("the process that ran it ended (Killed): test_two.py::test_dies") == 1, done.stdout
    assert done.stdout.count("\nprinted by the test") == done.stdout.count("DeprecationWarning: said by the test") == 3


def test_the_first_failure_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_wrong(): assert 0\n")
    (tmp_path / "test_two.py").write_text("import time\ndef test_long(): time.sleep(600)\n")
    done = _ran(tmp_path, "-x")
    assert done.returncode == 1 and "stopping after 1 failures" in done.stdout, done.stdout
