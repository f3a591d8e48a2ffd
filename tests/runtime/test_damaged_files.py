"""Whatever is in the place of a file of the cache, the program computes what eager does, and the next finds it repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

import warm

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).parent / "damaged_files.py"


def test_every_file_damaged_in_every_way() -> None:
    done = warm.run([DRIVER, "--some"], imported="compiler")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    cases = int(done.stdout.splitlines()[-1].split()[0])
    assert cases > 40
