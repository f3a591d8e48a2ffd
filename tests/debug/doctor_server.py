"""Runs `argand doctor` again and again in forks of one process, which has imported torch and the compiler once.

A line of JSON on standard input is a list of arguments; the answer is one of exit code, standard output and error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile

import argand.cli
from argand.debug.doctor import procedure  # noqa: F401 - so that forks need not import it
from argand.debug.doctor.child import warm


def run(arguments: list[str]) -> dict[str, object]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(error.fileno(), 2)
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
    warm()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
