"""What a call of a compiled function costs: guards and dispatch, beside eager and torch.compile, interleaved.

    python bench/overhead.py [--no-torch] [--rounds 200] [--verdicts OUT]

Three measurements: a 3-op function on 8 floats (target: half of eager); MobileBERT with a backend that returns
constants, so that only guards, input loading and dispatch are left (targets: 20 us, 1/20 of torch.compile); and the
guards of that MobileBERT alone. The systems take turns in short batches; the least batch of each counts.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
from rich.console import Console
from rich.table import Table

import models
from verdicts import Verdict, finish

WARM_UP = 20
BATCH_S = 0.002


def three_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y + x)


def constants(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend whose code does nothing: what is left of a call is the front end's."""
    with torch.no_grad():
        result = gm(*example_inputs)
    return lambda *args: result


def batch(fn: Callable[[], Any], count: int) -> float:
    """Seconds of this thread for one call: what other processes take is not counted."""
    start = time.thread_time()
    for _ in range(count):
        fn()
    return (time.thread_time() - start) / count


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Least time of a call of each, in microseconds; the systems take turns."""
    counts = {}
    for name, fn in calls.items():
        for _ in range(WARM_UP):
            fn()
        counts[name] = max(1, int(BATCH_S / max(batch(fn, 5), 1e-7)))
    best = dict.fromkeys(calls, float("inf"))
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, fn in calls.items():
            best[name] = min(best[name], batch(fn, counts[name]))
    gc.enable()
    return {name: seconds * 1e6 for name, seconds in best.items()}


def show(console: Console, title: str, times: dict[str, float], reference: str) -> None:
    """One table."""
    table = Table(title=title)
    for name, justify in (("system", "left"), ("us/call", "right"), (f"of {reference}", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    base = times.get(reference)
    for name, us in times.items():
        table.add_row(name, f"{us:.2f}", "" if base is None else f"{us / base:.3f}")
    console.print(table)


def small(console: Console, with_torch: bool, rounds: int) -> list[Verdict]:
    import argand

    x, y = torch.randn(8), torch.randn(8)
    with torch.no_grad():
        systems: dict[str, Callable[..., Any]] = {"eager": three_ops, "argand": argand.compile(three_ops)}
        if with_torch:
            systems["torch.compile"] = torch.compile(three_ops)
        times = interleaved({name: lambda fn=fn: fn(x, y) for name, fn in systems.items()}, rounds)  # type: ignore[misc]
    show(console, "3-op function, 8 floats", times, "eager")
    return [Verdict("calls, 3-op function", "of eager's time", times["argand"] / times["eager"], 0.5, at_most=True)]


def guards_of(model: torch.nn.Module, inputs: dict[str, Any]) -> Callable[[], Any]:
    """A call that evaluates the guards of the model's compiled forward, and nothing else."""
    from argand._core import _C

    forward: Any = type(model).forward
    entry = _C.code_entries(forward.__code__)[0]
    guards = entry.guards
    assert guards is not None
    args = (model, (), dict(inputs)) if forward.__code__.co_flags & 0x08 else (model, *inputs.values())
    frame = (args, forward.__globals__, vars(builtins), forward.__closure__)
    assert guards.matches(*frame)
    return lambda: guards.matches(*frame)


def mobilebert(console: Console, with_torch: bool, rounds: int) -> list[Verdict]:
    import argand

    model, inputs = models.MODELS["MobileBERT"]()
    with torch.no_grad():
        systems: dict[str, Any] = {"argand": argand.compile(model, backend=constants, fullgraph=True)}
        if with_torch:
            systems["torch.compile"] = torch.compile(model, backend=constants, fullgraph=True)
        calls: dict[str, Callable[[], Any]] = {}
        for name, fn in systems.items():
            calls[name] = lambda fn=fn: fn(**inputs)  # type: ignore[misc]
        times = interleaved(calls, rounds)
        show(console, "MobileBERT, backend returning constants", times, "torch.compile")
        guards = interleaved({"argand": guards_of(model, inputs)}, rounds)
    show(console, "MobileBERT, guards alone", guards, "torch.compile")
    place = "calls, MobileBERT without kernels"
    found = [Verdict(place, "us", times["argand"], 20.0, at_most=True)]
    if with_torch:
        share = times["argand"] / times["torch.compile"]
        found.append(Verdict(place, "of torch.compile's time", share, 1 / 20, at_most=True))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="leave torch.compile out")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--verdicts", help="append the verdicts here, as JSON")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    found = [measure(console, not args.no_torch, args.rounds) for measure in (small, mobilebert)]
    return 0 if finish([verdict for part in found for verdict in part], args.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
