"""First calls, cold and warm: each model in fresh processes that share a cache directory, empty before the first.

    python bench/warm.py [MODEL ...] [--train] [--short] [--times N] [--torch]

A process loads torch and the model, runs it eagerly, and is then timed from `compile(...)` to the end of the first call
(of the first training step with --train), imports of the compiler included. "programs off" is a warm process with
`ARGAND_PROGRAM_CACHE=0`: kernels come from the cache, everything else is done again. Warm figures are the least of N.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import models
from bench_environment import environment

WORKER = Path(__file__).parent / "worker.py"


def first_call(system: str, model: str, options: list[str], settings: dict[str, str]) -> float:
    """Seconds of a first call in a process of its own; nan when it failed."""
    command = [sys.executable, str(WORKER), system, model, "--seconds", "0", *options]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return float(json.loads(line[7:]).get("first_call_s", "nan"))
    return float("nan")


def measured(system: str, model: str, options: list[str], times: int) -> dict[str, float]:
    """Seconds of first calls, by how they were made."""
    with tempfile.TemporaryDirectory() as folder:
        place = environment(folder)
        found = {"cold": first_call(system, model, options, place)}
        ways = {"programs off": {"ARGAND_PROGRAM_CACHE": "0"}, "warm": {}} if system == "argand" else {"warm": {}}
        for way, settings in ways.items():
            found[way] = min(first_call(system, model, options, {**place, **settings}) for _ in range(times))
    return found


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="*", default=list(models.MODELS))
    ap.add_argument("--train", action="store_true")
    ap.add_argument("--short", action="store_true")
    ap.add_argument("--torch", action="store_true")
    ap.add_argument("--times", type=int, default=3)
    args = ap.parse_args()
    options = [f"--{name}" for name in ("train", "short") if getattr(args, name)]
    systems = ["argand", *(["torch"] if args.torch else [])]
    table = Table(title=f"first calls, s ({'training' if args.train else 'inference'})")
    for heading in ("model", "system", "cold", "kernels only", "warm"):
        table.add_column(heading, justify="left" if heading in ("model", "system") else "right")
    for model in args.models:
        for system in systems:
            found = measured(system, model, options, args.times)
            cells = [f"{found[way]:.2f}" if way in found else "" for way in ("cold", "programs off", "warm")]
            table.add_row(model, system, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
