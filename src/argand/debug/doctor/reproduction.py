"""The file that shows a fault by itself: written of a script, and run in a clean process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from argand.config import config
from argand.debug.doctor.child import Mode
from argand.debug.doctor.examination import Examination
from argand.debug.minify.files import hardware_lines, new_directory

_REPRO = '''"""Goes wrong when it is compiled: {text}

Made by `argand doctor` from {path}; `python {name}` runs the program below eagerly and compiled{how}, and raises
where the two differ.
"""

{hardware}

from argand.debug.doctor.program import run_program

PROGRAM = r"""
{source}
"""

if __name__ == "__main__":
    run_program(PROGRAM, folder={folder!r}, backend={backend!r}, settings={settings!r}{more})
'''


def write(doctor: Examination, source: str, mode: Mode, said: str, more: str = "") -> Path:
    """A file that runs a program eagerly and compiled, and raises where the two differ.

    Arguments:
        source: the program.
        mode: how it is compiled.
        said: what differs.
        more: further arguments of `run_program`, as text.
    """
    with config.patch(base_dir=str(doctor.output)):
        directory = new_directory()
    path = directory / "repro.py"
    more += (", count=True" if mode.count else "") + (f", torchs={mode.torch!r}" if mode.torch is not None else "")
    more += ", empty_cache=True" if mode.empty_cache else ""
    how = f' (backend "{mode.backend}")' if mode.backend else ""
    filled = _REPRO.format(
        text=said.replace("\\", "\\\\").replace('"""', "'''"), path=doctor.script.path, name=path.name, how=how,
        hardware="\n".join("# " + line for line in hardware_lines()), source=source.replace('"""', "'''"),
        folder=str(Path(doctor.script.path).resolve().parent), backend=mode.backend, settings=mode.settings, more=more,
    )  # fmt: skip
    path.write_text(filled, encoding="utf8")
    return path


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
