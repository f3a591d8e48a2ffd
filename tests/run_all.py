"""What `make test` runs: the whole suite, then, where few tests failed, these once more, each by itself.

A test that fails beside others and passes alone is a fault too, of the test or of argand, but a rare one: it is told of, and does not
hide what the rest of the suite says. More than `FEW` failures are taken as they are.

    python tests/run_all.py 4 [arguments of pytest]

The number is that of processes that run tests: forks of one that collected them (`workers`). Where there is a GPU they
are pytest-xdist's, which collect for themselves: once its driver was asked anything, forks of that process crash.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from pathlib import Path

FEW = 3
ROOT = Path(__file__).resolve().parent.parent
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
BY_FILES = ("--dist", "loadfile", "--no-loadscope-reorder")  # what the tests of a file share is made once
TESTS_FAILED = 1  # pytest's exit status; others mean that the tests were not run to their end


def pytest(count: int, *arguments: str) -> int:
    command = ["tests/workers.py", str(count)]
    if any(Path(driver).exists() for driver in DRIVERS):
        command = ["-m", "pytest", "-n", str(count), *BY_FILES]
    return subprocess.run([sys.executable, *command, *arguments], cwd=ROOT).returncode


def main(count: int, arguments: list[str]) -> int:
    if not sys.dont_write_bytecode:
        compileall.compile_dir(ROOT / "src", quiet=2, workers=2)  # else each worker compiles all of it
    status = pytest(count, "--cache-clear", *arguments)
    failed = list(json.loads(FAILED.read_bytes())) if status == TESTS_FAILED and FAILED.is_file() else []
    if not 0 < len(failed) <= FEW:
        return status
    print(f"\n{len(failed)} failed beside the others; now each by itself", flush=True)
    again = [name for name in failed if pytest(1, name)]
    for name in failed:
        print(f"{'FAILED' if name in again else 'UNSTABLE: failed beside others, passes by itself:'} {name}")
    return TESTS_FAILED if again else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
