"""Attempts that argand gives a Python of their own are forks here, of a process that has imported torch (2 s each)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warm


@pytest.fixture(autouse=True)
def quick_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trial/test_process.py` tests those that take long."""
    from argand.debug.trial import process

    def in_fork(job: process.Job, folder: Path, seconds: float, memory: int) -> dict[str, Any]:
        command = ["-m", process.__name__, str(folder), str(memory), json.dumps(job)]
        try:
            done = warm.run(command, env=process.environment(), timeout=seconds, imported="compiler")
        except subprocess.TimeoutExpired as error:
            (folder / "output").write_text(f"{error.stdout}{error.stderr}")
            return {"ended": False, "status": 9}
        (folder / "output").write_text(done.stdout + done.stderr)
        return {"ended": True, "status": -done.returncode if done.returncode < 0 else done.returncode << 8}

    monkeypatch.setattr(process, "_in_a_python_of_its_own", in_fork)
