"""Runs scripts for several processes as torchrun does, by its agent, but in forks of one process.

    python -m tests.distributed.launched accelerate SCRIPT '[[ARGUMENT, ...], ...]' '[{VARIABLE: TEXT}, ...]'

The process has imported the libraries that are named first; each list of arguments is a run of the script, in two processes.
Before what a run prints stands a line with its number.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def become(script: str, arguments: Sequence[str]) -> None:
    """What a rank does."""
    sys.modules["argand"].config.reset()  # reads the environment
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def run(script: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a script in two processes, to its end."""
    os.environ.update(variables)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="examples", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, become)(script, arguments)
    for name in variables:
        del os.environ[name]


def main() -> None:
    libraries, script, arguments, variables = sys.argv[1:]
    torch.set_num_threads(1)  # those of OpenMP would stay behind in this process (`forks`)
    for library in ("argand", *libraries.split(",")):
        importlib.import_module(library)
    for number, (one, its) in enumerate(zip(json.loads(arguments), json.loads(variables), strict=True)):
        print(f"run {number}", flush=True)
        run(script, one, its)


if __name__ == "__main__":
    main()
