"""What the reproductions call that `argand doctor` makes of scripts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from argand.debug.accuracy import AccuracyError
from argand.debug.doctor.child import PLAIN, Allowed, Mode, Script, run_script
from argand.debug.doctor.shrink import difference
from argand.errors import ArgandError


class ProgramError(ArgandError):
    """A program does something else when it is compiled."""

    stage = "doctor"


def run_program(
    source: str,
    *,
    folder: str,
    backend: str = "",
    settings: dict[str, Any] | None = None,
    seconds: float = 60.0,
    count: bool = False,
    torchs: str | None = None,
) -> None:
    """Run a program eagerly and compiled, in child processes.

    Arguments:
        source: the program.
        folder: of the script that it was made from: modules beside it are found.
        backend: used instead of every backend that the program names; "" leaves them.
        settings: of argand.config.
        seconds: after which a run counts as hung.
        torchs: torch.compile is torch's own, with this backend ("": the program's).
        count: live tensors are counted, to find leaks.

    Raises:
        AccuracyError, ProgramError: the two differ.
    """
    script = Script(str(Path(folder) / "program.py"), source=source)
    mode = Mode("compiled", backend=backend, settings=settings or {}, count=count, torch=torchs)
    place = Path(tempfile.mkdtemp(prefix="argand_program_"))
    try:
        eager = run_script(script, replace(PLAIN, count=count), place / "eager", Allowed(seconds))
        compiled = run_script(script, mode, place / "compiled", Allowed(seconds))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found = difference(eager, compiled, mode)
    if found is None:
        print("argand: this program does not go wrong any more")
    elif found.mismatch is not None and found.kind != "exception":
        raise AccuracyError(found.mismatch, remedy=found.text)
    else:
        raise ProgramError(f"{found.kind}: {found.text}\n{compiled.outcome.detail}")
