"""Single operations and small programs, forward and training: speed over eager of argand and of torch.compile.

    python bench/small_programs.py [REGEX] [--part I/N] [--seconds 0.3] [--torch] [--budget S] [--json OUT]

Two threads; each system and eager in turns, the figure is the median of ratios. `--part` takes every Nth program,
`--budget` stops asking torch.compile after so many seconds. What is slower than eager, or more than 5 % slower than
torch.compile, is marked, and the largest difference of results and gradients from eager's is given.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import argand
import small_further  # noqa: F401  adds its programs
import small_kinds  # noqa: F401  adds its programs
import small_losses  # noqa: F401  adds its programs
import small_methods  # noqa: F401  adds its programs
import small_odd  # noqa: F401  adds its programs
import small_sciences  # noqa: F401  adds its programs
from small_program_list import PROGRAMS, Program

clock = time.perf_counter


def differentiable(tensors: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tensors) if isinstance(t, torch.Tensor) and t.requires_grad]


def step(function: Callable[..., Any], args: tuple[Any, ...], train: bool) -> list[torch.Tensor]:
    """Results, and with `train` the gradients of floating-point arguments."""
    if not train:
        with torch.no_grad():
            return [t for t in pytree.tree_leaves(function(*args)) if isinstance(t, torch.Tensor)]
    results = pytree.tree_leaves(function(*args))
    ends = differentiable(results)
    leaves = differentiable(args)
    return list(torch.autograd.grad(ends, leaves, [cotangent(end) for end in ends], allow_unused=True))


@functools.cache
def waves(size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(size.numel()).sin().to(dtype).reshape(size)


def cotangent(end: torch.Tensor) -> torch.Tensor:
    """Numbers without a pattern, in the layout of a result."""
    if end.dim() == 0:
        return torch.ones_like(end)
    return (
        waves(end.shape, end.dtype) if end.is_contiguous() else torch.empty_like(end).copy_(waves(end.shape, end.dtype))
    )


def difference(want: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    worst = 0.0
    for a, b in zip(want, got, strict=True):
        if a is None or b is None:
            worst = worst if a is b else float("inf")
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if a.numel() and not torch.equal(a, b):
            a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
            finite = a.isfinite() & b.isfinite()
            scale = float(a[finite].abs().max()) if finite.any() else 1.0
            worst = max(worst, float((a - b)[finite].abs().max()) / (scale or 1.0) if finite.any() else 0.0)
            if not torch.equal(a[~finite].nan_to_num(1.0, 2.0, 3.0), b[~finite].nan_to_num(1.0, 2.0, 3.0)):
                worst = float("inf")
    return worst


def ratios(eager: Callable[[], Any], other: Callable[[], Any], seconds: float) -> list[float]:
    for _ in range(20):
        begin = clock()
        eager(), other()
        if clock() - begin > 0.05:
            break
    begin = clock()
    eager()
    calls = max(1, int(1e-3 / (clock() - begin)))
    found, end = [], clock() + seconds
    while clock() < end or len(found) < 7:
        taken = []
        for run in (eager, other) if len(found) % 2 else (other, eager):
            begin = clock()
            for _ in range(calls):
                run()
            taken.append(clock() - begin)
        found.append(taken[0] / taken[1] if len(found) % 2 else taken[1] / taken[0])
    return found


def measure(program: Program, system: str, train: bool, seconds: float) -> dict[str, float]:
    torch.manual_seed(0)
    waves.cache_clear()
    function, args = program.function, program.arguments(train)
    if system == "argand":
        argand.reset()
        compiled = argand.compile(function, dynamic=False)
    else:
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=False)
    want = step(function, args, train)
    begin = clock()
    got = step(compiled, args, train)
    first = clock() - begin
    far = difference(want, got)
    for _ in range(20):
        step(compiled, args, train)
    each = ratios(lambda: step(function, args, train), lambda: step(compiled, args, train), seconds)
    begin = clock()
    step(function, args, train)
    return {
        "speed": statistics.median(each),
        "eager_us": 1e6 * (clock() - begin),
        "first_s": first,
        "difference": far,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    global clock
    clock = time.process_time if options.processor_time else clock
    torch.set_num_threads(options.threads)
    part, parts = map(int, options.part.split("/"))
    names = [name for name in PROGRAMS if re.search(options.pattern, name)][part::parts]
    cases = [(name, train) for name in names for train in (False, True) if not train or PROGRAMS[name].trains]
    rows: dict[str, dict[str, Any]] = {}
    start = clock()
    for system in ("argand", "torch") if options.torch else ("argand",):
        for name, train in cases:
            if clock() - start > options.budget:
                break
            label = f"{name}{' (training)' if train else ''}"
            try:
                row = measure(PROGRAMS[name], system, train, options.seconds)
            except Exception as error:
                print(f"{system:6} {label:48} {type(error).__name__}: {str(error)[:150]!r}", flush=True)
                continue
            rows.setdefault(label, {})[system] = row
            behind = (
                system == "torch" and "argand" in rows[label] and row["speed"] * 0.95 > rows[label]["argand"]["speed"]
            )
            mark = " slower" if row["speed"] < 1 else ""
            mark += f" argand behind ({rows[label]['argand']['speed']:.2f})" if behind else ""
            mark += f" DIFFERS {row['difference']:.1e}" if row["difference"] > 1e-4 else ""
            print(
                f"{system:6} {label:48} {row['speed']:6.2f} eager {row['eager_us']:8.0f} us "
                f"first {row['first_s']:5.2f} s{mark}",
                flush=True,
            )
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
