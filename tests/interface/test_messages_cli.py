"""`argand explain` and `argand run` on scripts as users write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.interface.test_cli import command

SCRIPT = """
import argparse, sys, torch

parser = argparse.ArgumentParser()
parser.add_argument("how")
parser.add_argument("--times", type=int, default=2)
options = parser.parse_args()

@torch.compile(dynamic=False)
def f(x):
    print("step")
    return x + 1

def main():
    for n in range(options.times):
        f(torch.ones(n + 2))
    if options.how == "raise":
        raise ValueError("boom")
    if options.how == "exit":
        sys.exit(3)
    if options.how == "text":
        sys.exit("bye")

if __name__ == "__main__":
    main()
"""


def test_arguments_and_recompiles(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    done = command("explain", "s.py", "fine", "--times", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["step"] * 3
    assert "argand made 3 graphs" in done.stdout
    assert "x.size()[0] was 2, is now 3" in done.stdout and "mark_dynamic(x, 0)" in done.stdout


@pytest.mark.parametrize(
    "how, code, outcome, error",
    [
        ("raise", 1, "ValueError: boom", "ValueError: boom"),
        ("exit", 3, "exit code 3", ""),
        ("text", 1, "exit code 1", "bye"),
        ("fine", 0, "finished", ""),
    ],
)
def test_script_that_ends_early(tmp_path: Path, how: str, code: int, outcome: str, error: str) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    done = command("explain", "--output", "report.json", "--json", "s.py", how, cwd=tmp_path)
    assert done.returncode == code
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["outcome"] == outcome and found["graph_break_count"] >= 1
    assert error in done.stderr
    if how == "raise":
        # The traceback is the script's: it starts there.
        lines = done.stderr.splitlines()
        start = lines.index("Traceback (most recent call last):")
        assert "s.py" in lines[start + 1] and "runpy" not in done.stderr and "argand" not in done.stderr


def test_text_says_that_the_script_ended_early(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    done = command("explain", "s.py", "exit", cwd=tmp_path)
    assert done.returncode == 3
    assert "The script ended early (exit code 3)" in done.stdout and 'print("step")' in done.stdout


def test_run_keeps_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    assert command("run", "--backend", "eager", "s.py", "exit", cwd=tmp_path).returncode == 3
    done = command("run", "--backend", "eager", "s.py", "raise", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: boom")


def test_module_with_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "util.py").write_text("def double(x):\n    return x * 2\n")
    (package / "mod.py").write_text(
        "import sys, torch\nfrom .util import double\n"
        "torch.compile(lambda x: double(x) + 1)(torch.ones(2))\nprint(sys.argv[1:], __name__, __package__)\n"
    )
    done = command("explain", "-m", "pkg.mod", "one", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "['one', '--json'] __main__ pkg" in done.stdout
    assert "argand made 1 graph, with 0 graph breaks and 2 ops." in done.stdout
    done = command("run", "-m", "pkg.nothing", cwd=tmp_path)
    assert done.returncode == 1 and "pkg.nothing" in done.stderr and "Traceback" not in done.stderr


def test_unknown_backend(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print(1)")
    done = command("run", "--backend", "nativ", "s.py", cwd=tmp_path)
    assert done.returncode == 1 and "did you mean 'native'" in done.stderr and "Traceback" not in done.stderr


def test_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("def f(:\n")
    done = command("explain", "s.py", cwd=tmp_path)
    assert done.returncode == 1 and "SyntaxError" in done.stderr and "runpy" not in done.stderr


def test_how_a_script_ended_shows_no_escape_sequences(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('\\x1b[2J \\u202e')\n")
    done = command("explain", "script.py", cwd=tmp_path)
    assert "ended early (ValueError: \\x1b[2J \\u202e)" in done.stdout
