"""Runs a script for several processes in two forks of one process, with the variables that torchrun gives it.

    python -m tests.distributed.scripts LIBRARY,... SCRIPT ARGUMENT...

What the libraries import is imported once: that takes longer than what a short script does.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
import traceback

import torch

from distributed.ranks import codes_of

RANKS = 2


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def become(rank: int, port: int, script: str, arguments: list[str]) -> None:
    """What a rank does in its process; does not return."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of libraries that still run must not turn what was told into a failure


def main() -> int:
    libraries, script, *arguments = sys.argv[1:]
    torch.set_num_threads(1)  # threads of OpenMP would stay behind in this process (`forks`)
    for library in libraries.split(","):
        importlib.import_module(library)
    port, started = free_port(), []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            become(rank, port, script, arguments)
        started.append(child)
    return int(any(codes_of(started)))


if __name__ == "__main__":
    raise SystemExit(main())
