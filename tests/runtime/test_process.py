"""Compilers as processes: none is left whenever an interrupt comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis_server import silent_server

from argand.runtime import kernel_directories, process
from forks import fork

pytestmark = pytest.mark.slow

SLEEP = ("sleep", "600")


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="the kernel does not tell")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_interrupt_before_a_commands_number_is_known(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that runs as `fork` returns raises before anybody has the child's number."""
    started: list[Any] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            if len(started) == number + 1:
                raise KeyboardInterrupt

        def __del__(self) -> None:  # as if it had never had the number
            self.returncode = 0

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run_all([SLEEP] * 3, limit=60)
    assert len(started) == number + 1
    assert children().isdisjoint(map(str, started))  # (the process may have others, of tests before)


def test_other_children_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(SLEEP, start_new_session=True) as other:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess, "Popen", refuse)
        with pytest.raises(KeyboardInterrupt):
            process.run_all([SLEEP], limit=60)
        assert other.poll() is None
        other.kill()


def test_a_process_ends_in_order_whatever_its_threads_do(tmp_path: Path, fake: Callable[[str], str]) -> None:
    """Its status is the program's, no thread is cancelled, and no compiler or directory is left of it."""
    compiler = fake(f"touch {tmp_path}/runs; exec sleep 600")
    program = Path(__file__).with_name("ending_programs.py")
    with silent_server() as url:
        run = subprocess.run(
            [sys.executable, program, tmp_path, compiler, url], capture_output=True, text=True, timeout=500, check=False
        )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_a_child_that_is_forked_as_a_lock_is_taken_does_not_hold_it(folder: Path) -> None:
    """Another thread has opened the lock's file by then, and locks it a moment later."""
    folder.mkdir(parents=True)
    taken = kernel_directories.lock

    def forks_first(descriptor: int, *limits: float) -> bool:
        children.append(fork())
        if children[-1] == 0:
            signal.pause()
            os._exit(0)
        return taken(descriptor, *limits)

    children: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_directories, "lock", forks_first)
        with kernel_directories.locked(folder / "one", 0.0) as descriptor:
            assert descriptor is not None
    try:
        with kernel_directories.locked(folder / "one", 0.0) as descriptor:
            assert descriptor is not None
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
