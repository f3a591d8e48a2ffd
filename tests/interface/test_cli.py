"""The `argand` command, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import argand
import warm
from argand.breaks.kinds import IDS

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
    return warm.run(["-m", "argand.cli", *args], cwd=cwd, env=env, imported="compiler")


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


def test_env_tells_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from argand import cli
    from argand.runtime.gpu.device import target

    found = cli.environment()
    assert torch.cuda.is_available() or (found["GPUs"] == "none" and "GPU kernels" not in found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Lamp 6")
    monkeypatch.setattr(target, "gpu_problem", lambda device: "this GPU has compute capability 6.1.")
    monkeypatch.setattr(target, "triton_version", lambda: "3.6.0+17")
    found = cli.environment()
    assert (found["GPUs"], found["triton"]) == ("2 x Lamp 6", "3.6.0")
    assert found["GPU kernels"] == "none: this GPU has compute capability 6.1."


def test_breaks_prints_pages_and_lists_them(tmp_path: Path) -> None:
    done = command("breaks", "AG0023", "ag0001", "vmap", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in ("AG0023: print\n", "AG0001: data-dependent branch\n", "AG0127: vmap\n", "torch.where(x.sum() > 0"):
        assert part in done.stdout, part
    listed = command("breaks", cwd=tmp_path).stdout
    assert all(f"  {name}  {kind}\n" in listed for kind, name in IDS.items())
    wrong = command("breaks", "AG9999", cwd=tmp_path)
    assert wrong.returncode == 2 and "no graph break AG9999" in wrong.stderr
