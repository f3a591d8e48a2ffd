"""Kernels for GPUs, run by Triton's interpreter, which is chosen before triton is imported: a process of its own."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import warm
from sweeps import part

PROGRAM = Path(__file__).resolve().parent / "interpreted.py"


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compute_what_the_loops_say() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = warm.run([PROGRAM, "--examples", str(part(25, 5))], env=environment, imported="interpreter")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "kernels agree" in done.stdout
