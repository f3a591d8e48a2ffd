"""How near generated CPU kernels come to the memory's bandwidth: achieved over possible, for every kernel of a model.

    python bench/roofline.py [MODEL ...] [--threads N] [--rounds 4] [--all] [--least 0.8]

Each model is compiled and trained on tensors larger than the last level of cache. A kernel's bytes are those of the
elements that it reads and writes, each once; that a write reads the line first is not counted, neither for kernels nor
for what they are compared with, torch's sum of a tensor, its copy and its sum of two tensors (the fastest, by bytes,
measured between steps). Each launch is repeated, its memory is there then; times are the least of all (with one thread,
of its CPU time). Kernels that touch less than 96 MiB are left out (`--all` shows them). Exits with 1 where a kernel is
below `--least`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events
from argand.debug.benchmark.work import kernel_work
from argand.ir.kernel import KernelPlan
from argand.runtime import host, launch

LEAST_BYTES = 96 << 20  # three times a last level of cache of 32 MiB
REPEATS = 3

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Block(nn.Module):
    """Norms, a gated MLP and attention written out, of a transformer."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm, self.rms, self.end = nn.LayerNorm(width), nn.RMSNorm(width), nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.bias = nn.Linear(2 * width, width), nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.down(F.gelu(self.up(y)) * F.silu(self.gate(y)))
        y = self.rms(x)
        scores = (y @ y.transpose(-2, -1) * 0.05).softmax(-1)
        found: torch.Tensor = self.end(x + F.relu(scores @ y + self.bias))
        return found


class Maps(nn.Module):
    """Batch norms, activations, a pool and a residual of a convolutional network."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(self.mix(x)))
        y = F.hardswish(self.second(y)) + x
        return F.max_pool2d(y, 2) + F.avg_pool2d(x, 2)


MODELS: dict[str, Callable[[], Made]] = {
    "transformer": lambda: (Block(), (torch.randn(128, 512, 256),)),
    "convolutional": lambda: (Maps(), (torch.randn(16, 64, 160, 160),)),
}


def now() -> float:
    """Seconds; of this thread's CPU time, where it does all the work: other processes do not count."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def bandwidth(rounds: int) -> float:
    """Bytes a second of a sum, a copy, or a sum of two."""
    one, two, three = (torch.ones(48 << 20) for _ in range(3))
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: one.sum(), 1), (lambda: two.copy_(one), 2), (lambda: torch.add(one, two, out=three), 3)
    ]  # fmt: skip
    best = 0.0
    for call, tensors in calls:
        for _ in range(rounds):
            begin = now()
            call()
            best = max(best, tensors * one.nbytes / (now() - begin))
    return best


class Timed:
    """A kernel whose launches are repeated and timed."""

    def __init__(self, kernel: Callable[..., None], name: str, times: dict[str, float]) -> None:
        self.kernel, self.name, self.times = kernel, name, times

    def __call__(self, *args: Any) -> None:
        for _ in range(REPEATS):
            begin = now()
            self.kernel(*args)
            self.times[self.name] = min(self.times.get(self.name, 1e9), now() - begin)


def kernels_of(name: str, rounds: int) -> tuple[dict[str, float], dict[str, int], float]:
    """Seconds and bytes of each kernel, by name, and the bandwidth measured between the steps."""
    moved: dict[str, int] = {}
    times: dict[str, float] = {}
    count = 0

    def keep(event: events.Event) -> None:
        schedule: Any = event.data["schedule"]
        for step in schedule.steps:
            if isinstance(step, KernelPlan):
                moved[f"{step.name} of graph {count}"] = kernel_work(step, schedule.hints).bytes

    def make(address: int, kernel: str, *counts: int) -> Timed:
        return Timed(launch.make_kernel(address, kernel, *counts), f"{kernel} of graph {count}", times)

    def load(*args: Any) -> Any:
        nonlocal count
        loaded = load_kernels(*args)
        count += 1
        return loaded

    stop = events.bus.subscribe(keep, ("fused_graph",))
    load_kernels = host.load_kernels
    host.make_kernel, host.load_kernels = make, load  # type: ignore[assignment]
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    inputs = tuple(each.requires_grad_() for each in inputs)
    compiled = argand.compile(module)
    best = 0.0
    for _ in range(rounds):
        best = max(best, bandwidth(2))
        for each in (*module.parameters(), *inputs):
            each.grad = None
        compiled(*inputs).square().mean().backward()
    stop()
    host.make_kernel, host.load_kernels = launch.make_kernel, load_kernels
    return times, moved, best


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--all", action="store_true")
    ap.add_argument("--least", type=float, default=0.8)
    args = ap.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    low = 0
    with argand.config.patch({"cache": False, "tell_slower": False}):
        for name in args.models or MODELS:
            argand.reset()
            times, moved, best = kernels_of(name, args.rounds)
            print(f"{name}: {best / 1e9:.1f} GB/s measured, {torch.get_num_threads()} threads")
            for kernel in sorted(times, key=lambda kernel: -times[kernel]):
                if kernel not in moved or (moved[kernel] < LEAST_BYTES and not args.all):
                    continue
                share = moved[kernel] / times[kernel] / best
                below = share < args.least and moved[kernel] >= LEAST_BYTES
                low += below
                text = f"{moved[kernel] / 2**20:8.0f} MiB {times[kernel] * 1e3:8.2f} ms {share:7.0%}"
                print(f"{text}{' BELOW' if below else '      '} {kernel}")
    print(f"{low} kernels below {args.least:.0%}" if low else f"holds: no kernel below {args.least:.0%}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
