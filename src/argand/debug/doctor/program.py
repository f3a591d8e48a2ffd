"""What the reproductions call that `argand doctor` makes of scripts."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from argand.debug.accuracy import AccuracyError
from argand.debug.doctor.child import PLAIN, Allowed, Mode, Script, front_door, one_thread, run_script
from argand.debug.doctor.repetition import with_variants
from argand.debug.doctor.script_search import difference
from argand.debug.doctor.torch_compile import prepare
from argand.debug.observe import JOINT, Observer
from argand.errors import ArgandError


class ProgramError(ArgandError):
    """A program does something else when it is compiled."""

    stage = "doctor"


class _Eagerly(Observer):
    """An observer: programs get their functions as they wrote them."""

    def function(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        return original


def run_setup(source: str, path: str) -> None:
    """Run a script for what it changes: functions that it replaces, operators that it registers. It compiles nothing.

    Arguments:
        source: its text.
        path: where it was: modules beside it are found.
    """
    main, arguments = sys.modules["__main__"], list(sys.argv)
    before, JOINT.observer = JOINT.observer, _Eagerly()
    try:
        with front_door("answer_torch_compile")(backend="eager"), contextlib.redirect_stdout(io.StringIO()):
            Script(path, source=source).run()
    except (Exception, SystemExit):
        traceback.print_exc()  # what it changed before that may be enough
    finally:
        JOINT.observer = before
        sys.modules["__main__"], sys.argv = main, arguments


def run_program(
    source: str,
    *,
    folder: str,
    backend: str = "",
    settings: dict[str, Any] | None = None,
    seconds: float = 60.0,
    count: bool = False,
    torchs: str | None = None,
    empty_cache: bool = False,
    times: int = 1,
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
        empty_cache: the program does not see what earlier ones left in the cache of kernels.
        times: compiled runs until one differs: some faults show in some runs only.

    Raises:
        AccuracyError, ProgramError: the two differ.
    """
    if torchs is not None:
        prepare()
    script = Script(str(Path(folder) / "program.py"), source=source)
    mode = Mode(
        "compiled", backend=backend, settings=settings or {}, count=count, torch=torchs, empty_cache=empty_cache
    )
    place = Path(tempfile.mkdtemp(prefix="argand_program_"))
    allowed = Allowed(seconds, threads=one_thread())
    try:
        eager = run_script(script, replace(PLAIN, count=count), place / "eager", allowed)
        for number in range(times):
            compiled = run_script(script, mode, place / f"compiled_{number}", allowed)
            differing = difference(eager, compiled, mode)
            if differing is not None:
                with_variants(
                    eager, differing, lambda variant: run_script(script, variant, place / variant.name, allowed)
                )
                differing = difference(eager, compiled, mode)
            if differing is not None:
                break
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if differing is None:
        print("argand: this program does not go wrong any more")
    elif differing.mismatch is not None and differing.kind != "exception":
        raise AccuracyError(differing.mismatch, remedy=differing.text)
    else:
        raise ProgramError(f"{differing.kind}: {differing.text}\n{compiled.outcome.detail}")
