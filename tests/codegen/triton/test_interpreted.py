"""Kernels for GPUs, run by Triton's interpreter, which is chosen before triton is imported: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sweeps import part

PROGRAM = Path(__file__).resolve().parent / "interpreted.py"


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compute_what_the_loops_say() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(PROGRAM), "--examples", str(part(25, 3))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "kernels agree" in done.stdout
