"""A process that has imported everything and used no GPU: its forks make attempts where others cannot be forked.

Starting Python, torch and argand takes seconds, a fork milliseconds. `python -m argand.debug.minify.serving` is the
process; this is the side that asks it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
from typing import Any

from argand.debug.minify import isolate
from argand.locks import fork_safe_lock

_SETTINGS = ("ARGAND_REPRO_AFTER", "TORCHDYNAMO_REPRO_AFTER")  # would start a search in the search


class Server:
    """The process, as seen by the one that asks.

    Arguments:
        environment: of the attempts.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.lock = fork_safe_lock()
        self.process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "argand.debug.minify.serving"],
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
    return Server(environment()) if hasattr(os, "fork") else None


def environment() -> dict[str, str]:
    """What attempts find in the environment."""
    return {name: value for name, value in os.environ.items() if name not in _SETTINGS}
