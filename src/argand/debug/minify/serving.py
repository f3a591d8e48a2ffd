"""The process of `server`: imports everything, uses no GPU, and forks for each attempt.

`python -m argand.debug.minify.serving` reads a line of JSON for each attempt, and answers with how the child ended; it
ends itself when nobody is left to ask.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argand.debug.minify import isolate

_POLL = 0.005  # seconds


def serve() -> None:
    """Answer until the input ends."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # nothing that an import prints is an answer
        os.dup2(nothing, stream)
    from argand.debug.doctor.child import warm
    from argand.debug.minify import spawned

    warm()
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _attempt(request, spawned.main)
        deadline = time.monotonic() + request["seconds"]
        done = False
        while not done and time.monotonic() < deadline:
            done = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            time.sleep(0 if done else _POLL)
        isolate.kill(child)  # and what it has started, while its number is still its own
        answers.write(json.dumps({"ended": done, "status": os.waitpid(child, 0)[1]}) + "\n")
        answers.flush()


def _attempt(request: dict[str, Any], main: Callable[..., None]) -> None:
    """The child; does not return."""
    code = 70
    try:
        os.setsid()
        folder = Path(request["folder"])
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.chdir(request["cwd"])
        main(Path(request["path"]), folder, request["memory"], request["within"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
