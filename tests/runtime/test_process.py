"""Compilers as processes: none is left whenever an interrupt comes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from argand.runtime import process

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
