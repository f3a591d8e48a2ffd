"""Bandwidth that argand's fused kernels reach on a GPU, beside that of a copy in its memory.

    python bench/gpu_kernels.py [MODEL ...] [--train] [--short] [--dtype bfloat16] [--least 64] [--batches 1]
                                [--steps 5] [--json OUT]

For each kernel of each model that moves at least `--least` MB: launches a step, MB (each element that it reads or
writes once, from the kernel's plan), microseconds between two CUDA events, GB/s, and the share of the copy's bandwidth;
then the geometric mean, by model and of all, and the peak memory of a step beside eager's. The GPU waits before each
launch until the events are in its queue, so that no time of the CPU is in the figures. Exits with 1 without a GPU, or
when a model fails.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

WAIT = 60_000  # cycles of the GPU: longer than the CPU takes for two events and a launch


@dataclass
class Launches:
    """What the launches of one kernel took.

    Arguments:
        name: `graph_0_triton_fused_add_0`.
        pairs: events before and after each.
    """

    name: str
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


class Timed:
    """A kernel whose launches are timed while `Watch.on` is set; it gets its label as any kernel does."""

    def __init__(self, kernel: Callable[..., None], watch: Watch) -> None:
        self.kernel, self.watch = kernel, watch
        self.label, self.annotated = str(getattr(kernel, "name", "")), False

    def __call__(self, *args: Any) -> None:
        if not self.watch.on:
            self.kernel(*args)
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(WAIT)
        before.record()
        self.kernel(*args)
        after.record()
        self.watch.launches.setdefault(self.label, Launches(self.label)).pairs.append((before, after))


class Watch:
    """Stands between host modules and their kernels, and knows what each kernel has to move."""

    def __init__(self) -> None:
        self.on = False
        self.launches: dict[str, Launches] = {}
        self.work: dict[str, Any] = {}
        self.lines: dict[str, str] = {}
        self._graph = ""

    def install(self) -> None:
        """From now on."""
        from argand import events
        from argand.runtime.gpu.kernels import load

        made = load.load_triton_kernels

        def timed(text: str, specs: Mapping[str, Any], device: str) -> list[Timed]:
            return [Timed(kernel, self) for kernel in made(text, specs, device)]

        load.load_triton_kernels = timed  # type: ignore[assignment]
        events.bus.subscribe(self._take, ("span_begin", "fused_graph"))

    def _take(self, event: Any) -> None:
        from argand.debug.benchmark.work import graph_work

        if event.name == "span_begin":
            if event.data.get("span") == "compile_graph":
                self._graph = f"graph_{str(event.data['graph']).rpartition('_')[2]}"
            return
        schedule = event.data["schedule"]
        self.work.update(graph_work(self._graph, schedule).kernels)
        for plan in schedule.kernels():
            lines = [origin.user_line for origin in plan.origins if origin.user_line]
            self.lines[f"{self._graph}_{plan.name}"] = lines[0] if lines else ""

    def begin(self) -> None:
        self.on = True
        self.launches.clear()

    def rows(self, steps: int, least: float, copy: float) -> list[dict[str, Any]]:
        """One for each kernel that moves `least` bytes; `copy` is the copy's bandwidth."""
        torch.cuda.synchronize()
        if not any(name in self.work for name in self.launches):
            raise RuntimeError(
                "no launch of a kernel was seen: nothing was compiled for the GPU, or launched otherwise"
            )
        found = []
        for name, one in self.launches.items():
            moved = self.work[name].bytes if name in self.work else 0
            if moved < least:
                continue
            seconds = statistics.median(a.elapsed_time(b) for a, b in one.pairs) / 1e3
            found.append({
                "kernel": name, "launches": len(one.pairs) // steps, "mb": moved / 1e6, "us": seconds * 1e6,
                "gbs": moved / seconds / 1e9, "share": moved / seconds / copy, "line": self.lines.get(name, ""),
            })  # fmt: skip
        return sorted(found, key=lambda row: -row["us"] * row["launches"])


class Step:
    """A model on the GPU and a step of it: forward, and with `train` the backward of the first output's mean square."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        import gpu_models

        model, inputs = gpu_models.MODELS[name](options.short)
        dtype = getattr(torch, options.dtype)
        self.train = options.train
        self.model = model.to("cuda", dtype).requires_grad_(self.train)
        inputs = {k: v.repeat(options.batches, *(1 for _ in v.shape[1:])) for k, v in inputs.items()}
        self.inputs = {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in inputs.items()}

    def __call__(self, call: Any) -> None:
        if not self.train:
            with torch.no_grad():
                call(**self.inputs)
            return
        self.model.zero_grad(set_to_none=True)
        out = call(**self.inputs)
        out = next(v for v in out.values() if hasattr(v, "dtype")) if hasattr(out, "keys") else out
        (out[0] if isinstance(out, tuple) else out).float().pow(2).mean().backward()

    def peak(self, call: Any) -> float:
        """MB that a step takes at most."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self(call)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 1e6


def measure(name: str, options: argparse.Namespace, watch: Watch, copy: float) -> dict[str, Any]:
    """One model."""
    import argand

    step = Step(name, options)
    step(step.model)
    eager = step.peak(step.model)
    compiled = argand.compile(step.model)
    for _ in range(3):
        step(compiled)
    ours = step.peak(compiled)
    watch.begin()
    for _ in range(options.steps):
        step(compiled)
    rows = watch.rows(options.steps, options.least * 1e6, copy)
    watch.on = False
    argand.reset()
    return {"model": name, "rows": rows, "peak_mb": ours, "eager_peak_mb": eager}


def mean(shares: Iterable[float]) -> str:
    found = list(shares)
    if not found:
        return "no kernel is so large"
    return f"{statistics.geometric_mean(found):.2f} of a copy's in geometric mean of {len(found)}"


def report(told: list[dict[str, Any]], copy: float, least: float) -> None:
    print(f"\na copy: {copy / 1e9:.0f} GB/s; kernels that move at least {least:.0f} MB")
    print(f"{'model':12} {'launches':>8} {'MB':>7} {'us':>8} {'GB/s':>6} {'share':>6}  kernel")
    for one in told:
        for row in one.get("rows", ()):
            print(f"{one['model']:12} {row['launches']:8d} {row['mb']:7.0f} {row['us']:8.1f} {row['gbs']:6.0f} "
                  f"{row['share']:6.2f}  {row['kernel'][:70]}  {row['line'][-70:]}")  # fmt: skip
    for one in told:
        if "error" in one:
            print(f"{one['model']}: {one['error']}")
            continue
        print(f"{one['model']}: {mean(row['share'] for row in one['rows'])}; "
              f"peak {one['peak_mb']:.0f} MB, eager {one['eager_peak_mb']:.0f} MB")  # fmt: skip
    print(f"all: {mean(row['share'] for one in told for row in one.get('rows', ()))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--least", type=float, default=64.0, help="MB that a kernel moves at least")
    parser.add_argument("--batches", type=int, default=1, help="how many of the model's batches a step takes at once")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench/gpu_kernels.py needs a CUDA GPU; this machine has none")
        return 1
    import gpu_models
    from argand.debug.gpus import copy_bandwidth

    copy = copy_bandwidth(torch.device("cuda", torch.cuda.current_device()))
    watch, told = Watch(), []
    watch.install()
    for name in options.models or list(gpu_models.MODELS):
        try:
            told.append(measure(name, options, watch, copy))
        except Exception as error:
            told.append({"model": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
        print(json.dumps({key: value for key, value in told[-1].items() if key != "rows"}), flush=True)
    report(told, copy, options.least)
    counts = collections.Counter("error" in one for one in told)
    if options.json:
        with open(options.json, "w", encoding="utf8") as file:
            json.dump({"copy_gbs": copy / 1e9, "models": told}, file, indent=1)
    return 1 if counts[True] else 0


if __name__ == "__main__":
    sys.exit(main())
