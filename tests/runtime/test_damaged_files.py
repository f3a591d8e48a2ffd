"""Whatever is in the place of a file of the cache, the program computes what eager does, and the next finds it repaired."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).parent / "damaged_files.py"


def test_every_file_damaged_in_every_way() -> None:
    done = subprocess.run([sys.executable, str(DRIVER), "--some"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    cases = int(done.stdout.splitlines()[-1].split()[0])
    assert cases > 80
