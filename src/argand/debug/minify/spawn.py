"""Attempts in new processes, for where a fork cannot do what its parent does (a GPU is in use).

The program goes there as the text that `repro.py` would be; `python -m argand.debug.minify.spawned FILE FOLDER` runs it
and writes its outcome into the folder. Attempts are forks of a process that has imported all of that (`server`); what
is to show that a file fails by itself gets a Python of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from argand.debug.minify import isolate
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import Writer
from argand.debug.minify.identity import Fingerprint
from argand.debug.minify.isolate import Outcome
from argand.debug.minify.limits import Check, Limits
from argand.debug.minify.server import Server, environment, server_of
from argand.debug.minify.surgery import Program
from argand.errors import ArgandError

Within = tuple[str, dict[str, Any]] | None
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
        path = Writer(Path(folder), check, Fingerprint("unknown")).repro(program)
        return run_file(path, limits, within, server_of(os.getpid()))


def run_file(path: Path, limits: Limits, within: Within = None, server: Server | None = None) -> Outcome:
    """The check of a written file (`repro.py`) in a new process.

    Arguments:
        within: the "module:function" that is called instead, as `function(check, gm, inputs, **given)`, and `given`,
            which is plain data.
        server: whose fork the process may be.
    """
    with tempfile.TemporaryDirectory(prefix="argand-minify-") as name:
        folder = Path(name)
        (folder / "stage").write_bytes(bytes(4096))
        start, seconds = time.monotonic(), limits.attempt_seconds + _STARTING
        request = {"path": str(path.resolve()), "folder": name, "cwd": os.getcwd(), "seconds": seconds}
        answer = server.ask({**request, "memory": limits.memory, "within": within}) if server is not None else None
        if answer is None:
            answer = _run_alone(path, folder, seconds, limits.memory, within)
        printed = b""
        with contextlib.suppress(OSError), open(folder / "output", "rb") as written:
            written.seek(max(os.fstat(written.fileno()).st_size - 20_000, 0))
            printed = written.read(20_000)
        stage = (folder / "stage").read_bytes()[:64].rstrip(b"\0").decode(errors="replace")
        data = b""
        with contextlib.suppress(OSError):
            data = (folder / "outcome.json").read_bytes()
        took, text = time.monotonic() - start, printed.decode(errors="replace")
        return isolate.outcome_of_process(data, answer["ended"], answer["status"], took, text, stage)


def _run_alone(path: Path, folder: Path, seconds: float, memory: int, within: Within) -> dict[str, Any]:
    """Whether a Python of its own "ended" by itself, and its "status" as of `os.waitpid`."""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "argand.debug.minify.spawned",
                str(path),
                str(folder),
                str(memory),
                json.dumps(within),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment(),
        )
        ended = True
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            isolate.kill(process.pid)
            process.wait()
    code = process.returncode
    return {"ended": ended, "status": -code if code < 0 else code << 8}
