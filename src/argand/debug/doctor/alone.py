"""Runs a reproduction in a clean process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def fails_alone(repro: Path, finding: dict[str, Any], seconds: float) -> bool:
    """Whether a written reproduction fails in the same way in a clean process."""
    hangs = finding.get("kind") in ("hung", "hang")
    try:
        done = subprocess.run(
            [sys.executable, str(repro)], capture_output=True, text=True, check=False, cwd=repro.parent,
            timeout=seconds + 15 if hangs else max(300.0, seconds),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return hangs
    if done.returncode == 0:  # unless the process ended in the middle
        ends = finding.get("kind") in ("crashed", "crash") or finding.get("error") == "SystemExit"
        return ends and "any more" not in done.stdout + done.stderr
    if finding.get("kind") in ("crashed", "crash"):
        return done.returncode < 0 or "Fatal Python error" in done.stderr or done.returncode > 1
    error = str(finding.get("error", "")).rpartition(".")[2]
    return error in done.stderr
