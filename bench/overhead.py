"""What a call of a compiled function costs: a 3-op function on 8 floats, and guards and dispatch of MobileBERT.

    python bench/overhead.py [--no-torch]

MobileBERT runs with a backend that returns constants, so that only guards, input loading and dispatch are left.
"""

from __future__ import annotations

import argparse
import os
import statistics
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


def three_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y + x)


def best_of(fn: Callable[[], Any], seconds: float = 0.6) -> float:
    """Median over batches of the time of one call, in microseconds."""
    for _ in range(20):
        fn()
    start = time.perf_counter()
    fn()
    count = max(1, int(0.01 / max(time.perf_counter() - start, 1e-7)))
    batches, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            fn()
        batches.append((time.perf_counter() - start) / count)
    return statistics.median(batches) * 1e6


def constants(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend whose code does nothing: what is left of a call is the front end's."""
    with torch.no_grad():
        result = gm(*example_inputs)
    return lambda *args: result


def small(console: Console, with_torch: bool) -> None:
    import argand

    x, y = torch.randn(8), torch.randn(8)
    with torch.no_grad():
        rows = {"eager": three_ops, "argand": argand.compile(three_ops)}
        if with_torch:
            rows["torch.compile"] = torch.compile(three_ops)
        table = Table(title="3-op function, 8 floats")
        table.add_column("system")
        table.add_column("us/call", justify="right")
        for name, fn in rows.items():
            table.add_row(name, f"{best_of(lambda fn=fn: fn(x, y)):.2f}")
    console.print(table)


def mobilebert(console: Console, with_torch: bool) -> None:
    import argand

    model, inputs = models.MODELS["MobileBERT"]()
    table = Table(title="MobileBERT, backend returning constants")
    table.add_column("system")
    table.add_column("us/call", justify="right")
    with torch.no_grad():
        rows = {"argand": argand.compile(model, backend=constants, fullgraph=True)}
        if with_torch:
            rows["torch.compile"] = torch.compile(model, backend=constants, fullgraph=True)
        for name, fn in rows.items():
            table.add_row(name, f"{best_of(lambda fn=fn: fn(**inputs)):.1f}")
    console.print(table)


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--no-torch", action="store_true")
    args = ap.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    small(console, not args.no_torch)
    mobilebert(console, not args.no_torch)


if __name__ == "__main__":
    main()
