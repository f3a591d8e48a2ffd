"""Traces for tests: made by argand and by torch.compile from the same small programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import argand
import warm
from argand.report.reader import Reader
from argand.report.records import Record
from argand.report.writer import TraceSink

PROGRAM = """
import torch, COMPILER

def helper(x):
    print("printed")
    return x + 1

@COMPILER.compile(backend=BACKEND)
def breaks(x, w):
    y = (x @ w).relu()
    y = helper(y)
    return y.sum()

@COMPILER.compile(backend=BACKEND)
def plain(x):
    return x.sin() * 2

@COMPILER.compile(backend=BACKEND, fullgraph=True)
def fails(x):
    print(x)
    return x

x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
breaks(x, w).backward()
plain(torch.randn(4))
plain(torch.randn(5))
try:
    fails(torch.randn(3))
except Exception:
    pass
"""


# What torch reads from the environment when it is imported: what it should trace, and how. What torch.compile takes the
# most time for is not what is traced: trying whether the compiler can make each kind of vector code, and a pool of
# processes for its compilers, each of which imports torch.
_READ_ANEW = """import torch._inductor.config as settings, torch._logging._internal as logs
settings.cpp.vec_isa_ok, settings.compile_threads, settings.trace.provenance_tracking_level = True, 1, 1
logs.LOG_TRACE_HANDLER = None
logs._init_logs()
"""


def run_program(compiler: str, backend: str, cwd: Path, *, more: str = "", **environment: str) -> None:
    """PROGRAM, and `more` after it, in a process of its own."""
    run_text(
        compiler, PROGRAM.replace("COMPILER", compiler).replace("BACKEND", repr(backend)) + more, cwd, **environment
    )


def run_text(compiler: str, text: str, cwd: Path, **environment: str) -> None:
    """A program over argand or torch.compile, in a process of its own."""
    script = cwd / f"program_{compiler}.py"
    script.write_text(text)
    command = (
        [script] if compiler == "argand" else ["-c", _READ_ANEW + f"import runpy\nrunpy.run_path({str(script)!r})"]
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = warm.run(command, cwd=cwd, env=env, imported="" if compiler == "argand" else "ranks")
    assert done.returncode == 0, done.stderr


@contextmanager
def traced(folder: Path) -> Iterator[TraceSink]:
    """A structured trace of what is compiled inside."""
    sink = TraceSink(folder)
    remove = argand.events.bus.subscribe(sink)
    try:
        yield sink
    finally:
        remove()
        sink.file.close()


def read(folder: Path) -> list[Record]:
    """The records of a trace that has nothing wrong."""
    reader = Reader(folder)
    records = list(reader)
    assert not reader.problems, reader.problems
    return records


def tlparse_binary() -> str:
    """torch's tlparse; the test is skipped without it (pip install tlparse, a wheel with a binary)."""
    beside = Path(sys.executable).with_name("tlparse")
    found = str(beside) if beside.exists() else shutil.which("tlparse")
    if found is None:
        pytest.skip("tlparse is not installed: pip install tlparse")
    return found


def tlparse(trace: Path, out: Path, *options: str) -> str:
    """tlparse's verdict on a trace, its pages in `out`; fails when it does not like a line."""
    command = [tlparse_binary(), str(trace), "-o", str(out), "--no-browser", "--strict", "--overwrite", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr
