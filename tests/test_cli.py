"""The `argand` command, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import argand
import warm

SCRIPT = """
import sys, torch


@torch.compile
def f(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo", sys.argv[1:], __name__)
    if b.sum() < 0:
        b = b * -1
    return x * b

f(torch.ones(4), torch.ones(4))
"""


def command(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200"}
    return warm.run(["-m", "argand.cli", *args], cwd=cwd, env=env)


def test_run_answers_torch_compile(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        SCRIPT + "\nprint('dynamo' in ' '.join(m for m in sys.modules if m == 'torch._dynamo'))\n"
    )
    done = command("run", "s.py", "one", "--two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["woo ['one', '--two'] __main__", "False"]


def test_explain_script(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    done = command("explain", "s.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 graphs, with 2 graph breaks and 6 ops" in done.stdout
    assert 'print("woo"' in done.stdout and "What to do" in done.stdout
    done = command("explain", "--json", "s.py", cwd=tmp_path)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert found["graph_break_count"] == 2 and len(found["break_reasons"]) == 2
    assert found["break_reasons"][0]["where"][-1]["text"].startswith("print(")


def test_env(tmp_path: Path) -> None:
    done = command("env", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["argand"] == argand.__version__ and facts["settings"]["cache_size_limit"] == 8
    assert "cache_size_limit" in command("env", cwd=tmp_path).stdout


def test_cache(tmp_path: Path) -> None:
    assert command("cache", "stats", cwd=tmp_path).returncode == 0
    assert command("cache", "clear", cwd=tmp_path).returncode == 0


def test_missing_script(tmp_path: Path) -> None:
    done = command("run", "nope.py", cwd=tmp_path)
    assert done.returncode != 0 and "nope.py" in done.stderr and "Traceback" not in done.stderr
