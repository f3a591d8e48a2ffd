"""Runs `argand doctor` again and again in forks of one process, which has imported torch and the compiler once.

A line of JSON on standard input is a list of arguments; the answer is one of exit code, standard output and error.
Reproductions are run alone in forks of a process that has imported nothing but torch (`warm`); with `--new-process`
before the arguments, in new ones.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
import argand.cli
import warm
from argand.debug.doctor import (
    procedure,  # noqa: F401 - so that forks need not import it
    reproduction,
)
from argand.debug.trial.process import warm as import_all


def in_fork(command: list[str], *, cwd: Path, timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` does for the doctor, of a Python program."""
    assert command[0] == sys.executable
    return warm.run(command[1:], cwd=cwd, timeout=timeout)


def run(arguments: list[str]) -> dict[str, object]:
    if "--torch" in arguments:
        import torch._dynamo  # noqa: F401 - so that no fork need import it
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(error.fileno(), 2)
            if arguments[0] == "--new-process":
                del arguments[0]
            else:
                warm.lend(server)
                reproduction.subprocess = types.SimpleNamespace(run=in_fork, TimeoutExpired=subprocess.TimeoutExpired)
            sys.argv = ["argand", "doctor", *arguments]
            code: object = 70
            try:
                argand.cli.main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code if isinstance(code, int) else 70)
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        error.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "stdout": output.read().decode(errors="replace"),
            "stderr": error.read().decode(errors="replace"),
        }


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # typer looks for it when it runs
        import pydantic  # noqa: F401
    with contextlib.suppress(ImportError):  # each child seeds its numbers
        import numpy.random  # noqa: F401
    server = warm.own_server()
    import_all()
    warm.seed_without_stacks()
    warm.rarely_look_at_old_objects()
    gc.collect()
    gc.freeze()  # a collection in a fork looks at what the fork made, and copies no pages of the rest
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
