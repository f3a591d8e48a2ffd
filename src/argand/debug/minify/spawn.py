"""Attempts in new processes, for where a fork cannot do what its parent does (a GPU is in use).

That takes seconds each, not 30 ms. The program goes there as the text that `repro.py` would be; `python -m
argand.debug.minify.spawn FILE FOLDER` runs it and writes its outcome into the folder.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argand.debug.minify import isolate
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import Writer
from argand.debug.minify.identity import Fingerprint
from argand.debug.minify.isolate import Outcome
from argand.debug.minify.surgery import Program
from argand.errors import ArgandError

if TYPE_CHECKING:
    from argand.debug.minify.loop import Check, Limits

Within = tuple[str, dict[str, Any]] | None
_SETTINGS = ("ARGAND_REPRO_AFTER", "TORCHDYNAMO_REPRO_AFTER")  # would start a search in the search
_STARTING = 60.0  # seconds that imports may take besides the attempt


def run_spawned(check: Check, program: Program, limits: Limits, within: Within = None) -> Outcome:
    """One attempt in a new process.

    Arguments:
        within: what is run instead of the check, as `run_file` takes it.

    Raises:
        ArgandError: the check is not one that can be written down.
        NotCode: neither can the program.
    """
    if not isinstance(check, BackendCheck):
        raise ArgandError(
            "this process cannot be forked, and the check cannot be taken to another one",
            remedy="give a BackendCheck, or run where no GPU is in use",
        )
    with tempfile.TemporaryDirectory(prefix="argand-minify-") as folder:
        return run_file(Writer(Path(folder), check, Fingerprint("unknown")).repro(program), limits, within)


def run_file(path: Path, limits: Limits, within: Within = None) -> Outcome:
    """The check of a written file (`repro.py`) in a new process.

    Arguments:
        within: the "module:function" that is called instead, as `function(check, gm, inputs, **given)`, and `given`,
            which is plain data.
    """
    with tempfile.TemporaryDirectory(prefix="argand-minify-") as name:
        folder = Path(name)
        (folder / "stage").write_bytes(bytes(4096))
        start = time.monotonic()
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(path), str(folder), str(limits.memory), json.dumps(within)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in _SETTINGS},
            )
            ended = True
            try:
                process.wait(limits.attempt_seconds + _STARTING)
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                isolate.kill(process.pid)
                process.wait()
        with open(folder / "output", "rb") as written:
            written.seek(max(os.fstat(written.fileno()).st_size - 20_000, 0))
            printed = written.read(20_000).decode(errors="replace")
        stage = (folder / "stage").read_bytes()[:64].rstrip(b"\0").decode(errors="replace")
        data = b""
        with contextlib.suppress(OSError):
            data = (folder / "outcome.json").read_bytes()
        status = -process.returncode if process.returncode < 0 else process.returncode << 8
        return isolate.outcome_of_process(data, ended, status, time.monotonic() - start, printed, stage)


def main(path: Path, folder: Path, memory_limit: int, within: Within) -> None:
    """The new process."""
    import faulthandler

    from argand.debug.repro import load_module, program_of

    faulthandler.enable()
    with open(folder / "stage", "r+b") as file:
        isolate.use_stage(mmap.mmap(file.fileno(), 4096))
    module = load_module(path)
    program = program_of(module.Repro(), module.args)
    isolate.limit_memory(memory_limit)
    attempt: Callable[..., Any] = module.check
    if within is not None:
        name, given = within
        place, _, function = name.partition(":")
        attempt = functools.partial(getattr(importlib.import_module(place), function), module.check, **given)
    outcome = isolate.call(lambda: attempt(program.gm, program.inputs))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
