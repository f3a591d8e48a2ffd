"""Peak memory of a training step: eager, argand, torch.compile, each in its own process (Linux).

    python bench/memory.py [MODEL] [--short] [--no-torch] [--budget B] [--verdicts OUT]

A step is forward, mean square of the first output, backward. "step" is the highest resident set during a step over the
resident set before it, when gradients are dropped, argand's kept temporaries freed and the allocator has given
back what it could; "process" is the highest resident set of the whole process, compilers included.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_environment import environment
from verdicts import Verdict, finish

HERE = Path(__file__).resolve().parent
SYSTEMS = {"eager": "eager", "argand": "argand", "torch": "torch.compile"}


def status(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"no {field} in /proc/self/status")


def at_rest(system: str) -> float:
    """Give back what can be given back; the resident set that is left, in MiB."""
    if system == "argand":
        from argand.runtime.arena import arena_pool, kept_blocks

        arena_pool.clear()
        kept_blocks.clear()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return status("VmRSS")


def measure(system: str, name: str, short: bool, budget: float) -> dict[str, Any]:
    """Peaks of one system, in MiB."""
    sys.path.insert(0, str(HERE))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    import models
    import worker

    model, inputs = models.MODELS[name](short=short)
    model.requires_grad_(True).train()
    call: Any = model
    if system == "argand":
        import argand

        argand.config.activation_memory_budget = budget
        call = argand.compile(model, fullgraph=True)
    elif system == "torch":
        call = torch.compile(model, fullgraph=True)
    for _ in range(2):
        worker.train_step(call, model, inputs)
    steps = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        before = at_rest(system)
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident set
        worker.train_step(call, model, inputs)
        steps.append(status("VmHWM") - before)
    import resource

    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"system": system, "step_mb": min(steps), "process_mb": max(whole, status("VmHWM"))}


def run(system: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, args.model, "--system", system, "--budget", str(args.budget)]
    with tempfile.TemporaryDirectory() as cache:
        env = environment(cache)
        done = subprocess.run(command + ["--short"] * args.short, env=env, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    return {"system": system, "error": (done.stderr or done.stdout).strip()[-300:]}


def main() -> int:
    ap = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ap.add_argument("model", nargs="?", default="BERT")
    ap.add_argument("--short", action="store_true", help="a small variant of the model")
    ap.add_argument("--no-torch", action="store_true", help="leave torch.compile out")
    ap.add_argument("--budget", type=float, default=1.0, help="argand.config.activation_memory_budget")
    ap.add_argument("--verdicts", help="append the verdicts here, as JSON")
    ap.add_argument("--system", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.system:
        print("RESULT " + json.dumps(measure(args.system, args.model, args.short, args.budget)))
        return 0
    results = {s: run(s, args) for s in SYSTEMS if not (args.no_torch and s == "torch")}
    print(f"peak memory of a training step of {args.model}, MiB")
    for system, found in results.items():
        if "error" in found:
            print(f"  {SYSTEMS[system]:14} failed: {found['error']}")
        else:
            print(f"  {SYSTEMS[system]:14} step {found['step_mb']:8.1f}   process {found['process_mb']:8.1f}")
    steps = {system: found.get("step_mb", math.nan) for system, found in results.items()}
    found = [
        Verdict(
            f"memory, {args.model}",
            f"of {SYSTEMS[system]}'s peak in a training step",
            steps["argand"] / step,
            1.0,
            True,
            0.02,
        )
        for system, step in steps.items()
        if system != "argand"
    ]
    return 0 if finish(found, args.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
