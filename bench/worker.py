"""Measure one model under one system, in a process of its own; prints one JSON line.

    python bench/worker.py {argand|torch} MODEL [--short] [--train] [--seconds S] [--threads N]

first_call_s is what a user waits for: compile(...) and the first call, imports of the compiler included, torch and
the model already loaded. Steps of eager and compiled are interleaved; the ratio is the median over pairs. With --train
a step is forward, a loss (mean square of the first output), and backward, with the model in training mode; gradients
are compared in evaluation mode, where no random mask differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch

import models


def leaves(out: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree as pytree

    return [x for x in pytree.tree_leaves(dict(out) if hasattr(out, "keys") else out) if isinstance(x, torch.Tensor)]


def relative_difference(want: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    """Largest absolute difference over the largest absolute output; inf when shapes or dtypes differ."""
    worst = 0.0
    if len(want) != len(got):
        return float("inf")
    for a, b in zip(want, got):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if a.numel():
            scale = float(a.abs().max()) or 1.0
            difference = float((a - b).abs().max()) / scale
            worst = float("inf") if difference != difference else max(worst, difference)
    return worst


def step_times(eager: Any, compiled: Any, seconds: float) -> dict[str, float]:
    """Interleaved medians in seconds: eager, compiled, and the median of eager/compiled over pairs.

    The steps of the first quarter are not counted: kernels that compile beside them, and what is timed in passing, are
    over then.
    """
    end = time.perf_counter() + seconds / 4
    for number in itertools.count():
        eager()
        compiled()
        if number and time.perf_counter() > end:
            break
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < 5 or (time.perf_counter() < end and len(pairs) < 200):
        order = (eager, compiled) if len(pairs) % 2 == 0 else (compiled, eager)
        taken = []
        for fn in order:
            start = time.perf_counter()
            fn()
            taken.append(time.perf_counter() - start)
        pairs.append((taken[0], taken[1]) if order[0] is eager else (taken[1], taken[0]))
    ratios = sorted(a / b for a, b in pairs)
    middle = ratios[(3 * len(ratios)) // 4] - ratios[len(ratios) // 4]
    return {
        "eager_step_s": statistics.median(a for a, _ in pairs),
        "step_s": statistics.median(b for _, b in pairs),
        "speedup": statistics.median(ratios),
        "noise": 1.86 * middle / len(ratios) ** 0.5,  # two standard errors of a median
        "pairs": len(pairs),
    }


def compile_with(system: str, model: Any) -> Any:
    if system == "argand":
        import argand

        return argand.compile(model, fullgraph=True)
    return torch.compile(model, fullgraph=True)


def train_step(call: Any, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    leaves(call(**inputs))[0].float().pow(2).mean().backward()


def gradients(call: Any, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    train_step(call, model, inputs)
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def measure_training(system: str, name: str, short: bool, seconds: float) -> dict[str, Any]:
    model, inputs = models.MODELS[name](short=short)
    model.requires_grad_(True)
    want = gradients(model, model, inputs)
    largest = max(float(g.abs().max()) for g in want)
    checked = compile_with(system, model)
    got = gradients(checked, model, inputs)
    difference = max(float((a - b).abs().max()) for a, b in zip(want, got)) / largest
    model, inputs = models.MODELS[name](short=short)
    model.requires_grad_(True).train()
    for _ in range(2):
        train_step(model, model, inputs)
    start = time.perf_counter()
    compiled = compile_with(system, model)
    train_step(compiled, model, inputs)
    first = time.perf_counter() - start
    result: dict[str, Any] = {"system": system, "model": name, "first_call_s": first, "difference": difference}
    times = step_times(lambda: train_step(model, model, inputs), lambda: train_step(compiled, model, inputs), seconds)
    result.update(times)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def measure(system: str, name: str, short: bool, seconds: float) -> dict[str, Any]:
    model, inputs = models.MODELS[name](short=short)
    with torch.no_grad():
        want = leaves(model(**inputs))
        model(**inputs)
        start = time.perf_counter()
        compiled = compile_with(system, model)
        got = leaves(compiled(**inputs))
        first = time.perf_counter() - start
        result: dict[str, Any] = {"system": system, "model": name, "first_call_s": first}
        result["difference"] = relative_difference(want, got)
        result.update(step_times(lambda: model(**inputs), lambda: compiled(**inputs), seconds))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("system", choices=["argand", "torch"])
    ap.add_argument("model", choices=list(models.MODELS))
    ap.add_argument("--short", action="store_true")
    ap.add_argument("--train", action="store_true")
    ap.add_argument("--seconds", type=float, default=6.0)
    ap.add_argument("--threads", type=int, default=0)
    args = ap.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        run = measure_training if args.train else measure
        result = run(args.system, args.model, args.short, args.seconds)
    except Exception as error:
        import traceback

        result = {"system": args.system, "model": args.model, "error": f"{type(error).__name__}: {error}"[:2000]}
        traceback.print_exc()
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
