"""A process that has imported everything and used no GPU: its forks make attempts where others cannot be forked.

Starting Python, torch and argand takes seconds, a fork milliseconds. `python -m argand.debug.minify.server` reads a
line of JSON for each attempt, and answers with how the child ended; it ends itself when nobody is left to ask.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from argand.debug.minify import isolate
from argand.locks import fork_safe_lock

_POLL = 0.005  # seconds


class Server:
    """The process, as seen by the one that asks.

    Arguments:
        environment: of the attempts.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.lock = fork_safe_lock()
        self.process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,  # an interrupt is for the one that asks
        )
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """How an attempt ended: "ended" by itself, exit "status" as of `os.waitpid`. None where the server is gone."""
        with self.lock:
            if self.process is None or self.process.stdin is None or self.process.stdout is None:
                return None
            try:
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
                answer: dict[str, Any] = json.loads(self.process.stdout.readline())
            except (OSError, ValueError):
                self.close()
                return None
            except BaseException:  # interrupted: what comes would be taken for the next answer
                self.close()
                raise
            return answer

    def close(self) -> None:
        """End it, and what it runs."""
        process, self.process = self.process, None
        if process is not None:
            isolate.kill(process.pid)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was written to one that is gone cannot be sent
                        stream.close()


@functools.cache
def server_of(process: int) -> Server | None:
    """The server of this process, `process` being its id; None where there is no fork."""
    from argand.debug.minify.spawn import environment

    return Server(environment()) if hasattr(os, "fork") else None


# ----------------------------------------------------------------------- the other side


def serve() -> None:
    """Answer until the input ends."""
    from argand.debug.doctor.child import warm

    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # nothing that an import prints is an answer
        os.dup2(nothing, stream)
    warm()
    import argand.debug.repro  # noqa: F401 - so that forks need not

    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _attempt(request)
        deadline = time.monotonic() + request["seconds"]
        done = False
        while not done and time.monotonic() < deadline:
            done = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            time.sleep(0 if done else _POLL)
        isolate.kill(child)  # and what it has started, while its number is still its own
        answers.write(json.dumps({"ended": done, "status": os.waitpid(child, 0)[1]}) + "\n")
        answers.flush()


def _attempt(request: dict[str, Any]) -> None:
    """The child; does not return."""
    code = 70
    try:
        from argand.debug.minify import spawn

        os.setsid()
        folder = Path(request["folder"])
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.chdir(request["cwd"])
        spawn.main(Path(request["path"]), folder, request["memory"], request["within"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
