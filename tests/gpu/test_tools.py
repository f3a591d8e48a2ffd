"""Debug directory, report, minifier, doctor, numerics checker, profiles and the others on Triton kernels (`tool_programs`).

On a GPU, or in Triton's interpreter; each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import warm

PROGRAMS = Path(__file__).resolve().parent / "tool_programs.py"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")]


def run(name: str, folder: Path) -> None:
    """One of the programs."""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(folder / "cache")}
    command = [str(PROGRAMS), name]
    if torch.cuda.is_available():
        command = [sys.executable, *command]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)
    else:
        done = warm.run(
            command, env={**environment, "TRITON_INTERPRET": "1"}, cwd=folder, nested=True, imported="interpreter"
        )
    assert f"{name}: ok" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


def test_each_program_is_a_test() -> None:
    names = {line.removeprefix("def ").partition("(")[0] for line in PROGRAMS.read_text().split("@program\n")[1:]}
    assert {f"test_{name}" for name in names} <= set(globals())


def test_a_command_that_takes_too_long_says_where_it_was(tmp_path: Path) -> None:
    code = "import sys, tool_programs; tool_programs.command('-c', 'import time; time.sleep(60)', seconds=3.0)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROGRAMS.parent, timeout=120)
    assert "no end within 3 s" in done.stderr and 'File "<string>", line 1 in <module>' in done.stderr, done.stderr


def test_debug_directory(tmp_path: Path) -> None:
    run("debug_directory", tmp_path)


def test_programs_run_alone(tmp_path: Path) -> None:
    run("programs_run_alone", tmp_path)


def test_provenance(tmp_path: Path) -> None:
    run("provenance", tmp_path)


def test_logs(tmp_path: Path) -> None:
    run("logs", tmp_path)


def test_kernel_overrides(tmp_path: Path) -> None:
    run("kernel_overrides", tmp_path)


def test_numerics(tmp_path: Path) -> None:
    run("numerics", tmp_path)


def test_audit(tmp_path: Path) -> None:
    run("audit", tmp_path)


def test_fallback_random(tmp_path: Path) -> None:
    run("fallback_random", tmp_path)


def test_minifier(tmp_path: Path) -> None:
    run("minifier", tmp_path)


def test_doctor(tmp_path: Path) -> None:
    run("doctor", tmp_path)


def test_doctor_of_what_is_not_codegen(tmp_path: Path) -> None:
    run("doctor_of_what_is_not_codegen", tmp_path)


def test_replay(tmp_path: Path) -> None:
    run("replay", tmp_path)


def test_kernel_profile(tmp_path: Path) -> None:
    run("kernel_profile", tmp_path)


def test_bench(tmp_path: Path) -> None:
    run("bench", tmp_path)


def test_compile_times(tmp_path: Path) -> None:
    run("compile_times", tmp_path)
