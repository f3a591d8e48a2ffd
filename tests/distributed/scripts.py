"""Runs a script for several processes in two forks of one process, with the variables that torchrun gives it.

    python -m tests.distributed.scripts LIBRARY,... SCRIPT RUNS

The runs, one after the other, are a list in JSON, of each its arguments and what else is in its environment; a line
`NEXT` follows what each prints. What the libraries import is imported once: that takes longer than what a short script
does.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import traceback

import torch
import torch.distributed as dist

from distributed.ranks import codes_of

RANKS = 2
NEXT = "=== the next run"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def become(rank: int, port: int, script: str, arguments: list[str], environment: dict[str, str]) -> None:
    """What a rank does in its process; does not return."""
    os.environ.update(environment)
    if "argand" in sys.modules:  # a library imported it
        sys.modules["argand"].config.reset()  # reads the environment
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    sys.argv = [script, *arguments]
    # It may wait for ever, in eager's runs too; the process ends anyway.
    dist.destroy_process_group = lambda *group: None

    dist.destroy_process_group = lambda *_: None  # it may wait for ever, in eager's runs too; the process ends anyway
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of libraries that still run must not turn what was told into a failure


def main() -> int:
    libraries, script, runs = sys.argv[1:]
    torch.set_num_threads(1)  # threads of OpenMP would stay behind in this process (`forks`)
    for library in libraries.split(","):
        importlib.import_module(library)
    for arguments, environment in json.loads(runs):
        port, started = free_port(), []
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                become(rank, port, script, arguments, environment)
            started.append(child)
        if any(codes_of(started)):
            return 1
        print(NEXT, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
