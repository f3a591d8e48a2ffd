"""The runner of `make test-gpu`, on commands that need no GPU: lines as parts end, limits, an end from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

RUNNER = Path(__file__).resolve().parent / "run.py"
HEAD = f"""
import argparse, importlib.util, sys
spec = importlib.util.spec_from_file_location("gpu_runner", {str(RUNNER)!r})
runner = importlib.util.module_from_spec(spec)
sys.modules["gpu_runner"] = runner
spec.loader.exec_module(runner)

def part(name, code, seconds=60.0):
    return runner.Part(name, [sys.executable, "-c", code], seconds)

def run(*parts):
    print("failed:", runner.run_all(parts, argparse.Namespace(jobs=4, output=None)), flush=True)
"""
SLOW = "import time\\ndef asleep(): time.sleep(60)\\nprint('begun', flush=True)\\nasleep()"


def started(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_lines_come_as_parts_end() -> None:
    process = started(f"""
        run(part("hangs", "{SLOW}", 4.0), part("ends", "print('all well')"), part("fails", "assert 1 == 2"))
    """)
    said, _ = process.communicate(timeout=300)
    lines = [line for line in said.splitlines() if line.startswith(("hangs", "ends", "fails"))]
    assert [line.split()[0] for line in lines][-1] == "hangs" and "FAILED (124)" in lines[-1]
    assert any(line.startswith("ends          ok") and line.endswith("all well") for line in lines)
    assert "in asleep" in said, said  # where it was
    assert "'hangs'" in said.splitlines()[-1] and "'ends'" not in said.splitlines()[-1]


def test_an_end_from_outside_says_what_had_not_ended() -> None:
    process = started(f"""
        run(part("first", "print('all well')"), *[part(f"slow {{i}}", "{SLOW}") for i in range(6)])
    """)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("first         ok")
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[0]
    assert said.count(" ended ") == 6 and "in asleep" in said and "it was not started" in said, said


def test_each_program_of_the_tools_is_a_part() -> None:
    process = started("""
        print(*[part.name for part in runner.tools()], sep=", ")
    """)
    names = process.communicate(timeout=300)[0].strip().split(", ")
    text = (RUNNER.parent / "tool_programs.py").read_text()
    assert len(names) == text.count("@program\n") and names[0].startswith(("tools: doctor", "tools: minifier"))
