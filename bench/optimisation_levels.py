"""What g++'s levels of optimisation are worth for generated kernels: seconds of the compiler, and speed.

    python bench/optimisation_levels.py [--only REGEX] [--levels O1,O2,O3] [--seconds 1.0] [--threads 1]

A process for each level compiles every program, its kernels built anew, and the processes run it in turns. "g++" is
the compiler's seconds of processor time, "time" the median over rounds of a call's time over that of the first level
(below 1 is faster). A level may have more flags, `O1+funswitch-loops`. Each kind of kernel ends with the sum of the
former and the geometric mean of the latter. What kernels ask for themselves (`-O3` where loops have masks that vectors
share) is asked for at every level.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F

import argand
from argand.runtime import toolchain

KINDS: dict[str, list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]]] = {
    "pointwise": [
        ("gelu", F.gelu, ((512, 512),)),
        ("logarithms", lambda x, u: (x - torch.log(-torch.log(u.sigmoid()))) / 0.7, ((256, 500),) * 2),
        ("transposed", lambda x: x.T.contiguous() + 1, ((700, 900),)),
        ("rotary", lambda x, c: torch.cat([-x[..., 32:], x[..., :32]], -1) * c + x, ((2, 8, 128, 64), (128, 64))),
        ("image", lambda x: F.interpolate(x, size=(53, 71), mode="bilinear"), ((2, 16, 37, 41),)),
        ("zeros around", lambda x: F.pad(x, (2, 2, 2, 2)).relu(), ((8, 32, 40, 40),)),
        ("padded", lambda x: F.pad(x, (3, 3, 3, 3), "reflect") * 2, ((8, 32, 56, 56),)),
    ],
    "reductions": [
        ("softmax", lambda x: F.softmax(x, -1), ((256, 700),)),
        ("layer norm", lambda x, w: F.layer_norm(x, (768,), w), ((256, 768), (768,))),
        ("columns", lambda x: (x - x.mean(0)) / x.std(0), ((500, 300),)),
        ("maximum and place", lambda x: x.max(1), ((300, 400),)),
        ("running sums", lambda x: x.cumsum(-1), ((128, 500),)),
        ("pools", lambda x: F.max_pool2d(x, 3, 2, 1), ((4, 32, 56, 56),)),
    ],
    "products": [
        ("linear", lambda x, w: F.relu(F.linear(x, w)), ((128, 192), (256, 192))),
        ("batched", lambda x, y: torch.bmm(x, y), ((200, 8, 8), (200, 8, 8))),
        ("depthwise 5x5", lambda x, w: F.conv2d(x, w, padding=2, groups=48), ((2, 48, 28, 28), (48, 1, 5, 5))),
        ("depthwise 1d", lambda x, w: F.conv1d(x, w, padding=3, groups=64), ((4, 64, 250), (64, 1, 7))),
        ("attention", lambda q: F.softmax(q @ q.mT / 5, -1) @ q, ((8, 64, 32),)),
        ("depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=32), ((4, 32, 28, 28), (32, 1, 3, 3))),
    ],
    "scattered": [
        ("index_add", lambda x: torch.zeros(200, 48).index_add(0, PLACES, x), ((3000, 48),)),
        ("gathered", lambda x: x[PLACES].sum(0), ((200, 48),)),
        ("sorted segments", lambda x: torch.zeros(200).scatter_reduce(0, PLACES, x, "amax"), ((3000,),)),
    ],
}
PLACES = torch.arange(3000) * 7919 % 200


def serve(level: str, threads: int, pipe: Connection) -> None:
    """A process of one level: compiles programs that are named, and says how many seconds so many calls take."""
    asked = [f"-{flag}" for flag in level.split("+")]
    toolchain._FLAGS = (*(flag for flag in toolchain._FLAGS if not flag.startswith("-O")), *asked)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    programs = {name: (function, sizes) for rows in KINDS.values() for name, function, sizes in rows}
    with tempfile.TemporaryDirectory() as folder, argand.config.patch(cache_dir=folder):
        while (name := pipe.recv()) is not None:
            function, sizes = programs[name]
            torch.manual_seed(0)
            args = tuple(torch.randn(size) for size in sizes)
            compiled = argand.compile(function, dynamic=False)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            for _ in range(3):
                compiled(*args)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            pipe.send(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            while (calls := pipe.recv()) > 0:
                begin = time.perf_counter()
                for _ in range(calls):
                    compiled(*args)
                pipe.send(time.perf_counter() - begin)


def in_turns(pipes: list[Connection], seconds: float) -> list[list[float]]:
    """Seconds of some calls of each process, round by round."""

    def taken(pipe: Connection, calls: int) -> float:
        pipe.send(calls)
        return float(pipe.recv())

    repeats = max(1, int(1e-3 / min(taken(pipes[0], 1) for _ in range(3))))
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 9:
        row = [0.0] * len(pipes)
        for turn in range(len(pipes)):
            at = (turn + len(rounds)) % len(pipes)
            row[at] = taken(pipes[at], repeats)
        rounds.append(row)
    return rounds


def mean(ratios: tuple[float, ...]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--levels", default="O1,O2,O3")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    levels = options.levels.split(",")
    context = multiprocessing.get_context("spawn")
    pipes = []
    for level in levels:
        here, beyond = context.Pipe()
        context.Process(target=serve, args=(level, options.threads, beyond), daemon=True).start()
        pipes.append(here)
    print(f"{'program':32}" + "".join(f"{level:>6} g++  time" for level in levels))
    for kind, programs in KINDS.items():
        costs: list[list[float]] = []
        speeds: list[list[float]] = []
        for name, _, _ in programs:
            if not re.search(options.only, f"{kind}, {name}"):
                continue
            seconds = []
            for pipe in pipes:
                pipe.send(name)
                seconds.append(pipe.recv())
            rounds = in_turns(pipes, options.seconds)
            for pipe in pipes:
                pipe.send(0)
            costs.append(seconds)
            speeds.append([statistics.median(row[at] / row[0] for row in rounds) for at in range(len(levels))])
            show(f"{kind}, {name}", seconds, speeds[-1])
        if costs:
            show(f"{kind} (sum, mean)", list(map(sum, zip(*costs))), list(map(mean, zip(*speeds))))
    for pipe in pipes:
        pipe.send(None)


def show(name: str, costs: list[float], speeds: list[float]) -> None:
    print(f"{name:32}" + "".join(f"     {c:5.2f} {s:5.2f}" for c, s in zip(costs, speeds)), flush=True)


if __name__ == "__main__":
    main()
