"""Operations that became loops of argand's: microseconds of eager, argand and torch.compile on one thread, interleaved.

    python bench/lowered_ops.py [REGEX] [--train] [--seconds 1] [--torch] [--channels-last] [--json OUT]

Each is measured between two pointwise operations, as it stands in programs; with --train a step has a backward.
"slower" marks what takes longer than in eager by more than a tenth. Times are of the CPU, whatever else runs.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import argand

Program = tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]

rows = torch.randn(512, 256)
image = torch.randn(4, 32, 56, 56)
signal = torch.randn(8, 64, 400)
volume = torch.randn(2, 16, 12, 20, 20)
nodes = torch.randint(0, 512, (4096,))
edges = torch.randn(4096, 64)
positions = torch.randint(0, 512, (512, 256))
grid = torch.rand(4, 40, 40, 2) * 2.4 - 1.2
cube = torch.rand(2, 12, 20, 20, 3) * 2.4 - 1.2
mask = torch.rand(512, 256) < 0.5
chosen = rows[mask]
limits = torch.linspace(-2, 2, 100)
whole = torch.randint(0, 1 << 20, (512, 256))
some = torch.randint(0, 8, (512, 256))
turn = torch.polar(torch.ones(128), torch.randn(128))
squares = torch.randn(128, 128, dtype=torch.complex64)
wide = nodes.view(-1, 1).expand(-1, 64)


def reduced(mode: str, itself: bool = True) -> Program:
    start = torch.zeros(512, 64)
    return (lambda x: torch.scatter_reduce(start, 0, wide, x, mode, include_self=itself)), edges


def padded(mode: str, x: torch.Tensor, *pads: int) -> Program:
    return (lambda y: F.pad(y, pads, mode)), x


def resized(mode: str, x: torch.Tensor, **options: Any) -> Program:
    return (lambda y: F.interpolate(y, mode=mode, **options)), x


def complex_numbers(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> Program:
    """A function of complex numbers, between pairs of real ones."""

    def between(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().view(512, 128, 2))
        return torch.view_as_real(function(pairs)).flatten(1).to(dtype)

    return between, rows.to(dtype)


PROGRAMS: dict[str, Program] = {
    "scatter": (lambda x: torch.zeros(512, 256).scatter(0, positions, x), rows),
    "scatter a number": (lambda x: x.scatter(1, positions[:, :4] % 256, 0.0), rows),
    "scatter_reduce sum": reduced("sum"),
    "scatter_reduce mean": reduced("mean"),
    "scatter_reduce amax": reduced("amax"),
    "scatter_reduce amin without self": reduced("amin", False),
    "scatter_reduce prod": reduced("prod"),
    "index_put": (lambda x: torch.zeros(512, 64).index_put((nodes,), x), edges),
    "index_put accumulate": (lambda x: torch.zeros(512, 64).index_put((nodes,), x, accumulate=True), edges),
    "index_copy": (lambda x: torch.zeros(512, 64).index_copy(0, nodes, x), edges),
    "index_fill": (lambda x: x.index_fill(0, nodes[:50], 1.0), edges),
    "cumsum rows": (lambda x: torch.cumsum(x, 1), rows),
    "cumsum columns": (lambda x: torch.cumsum(x, 0), rows),
    "cumprod columns": (lambda x: torch.cumprod(x, 0), rows),
    "logcumsumexp rows": (lambda x: torch.logcumsumexp(x, 1), rows),
    "logcumsumexp columns": (lambda x: torch.logcumsumexp(x, 0), rows),
    "cummax rows": (lambda x: torch.cummax(x, 1)[0], rows),
    "cummin columns": (lambda x: torch.cummin(x, 0)[0], rows),
    "cumsum of positions": (lambda x: x[:8] * torch.cumsum(whole[:8] > 3, 1), rows),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), image),
    "avg_pool2d 3 s1 p1": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), image),
    "avg_pool2d 3 s2 p1": (lambda x: F.avg_pool2d(x, 3, 2, 1), image),
    "avg_pool2d 3 s2 ceil": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), image),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 4, 2), signal),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), volume),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2), signal),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), image),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), volume),
    "adaptive_avg_pool2d 7": (lambda x: F.adaptive_avg_pool2d(x, 7), image),
    "adaptive_avg_pool2d 6": (lambda x: F.adaptive_avg_pool2d(x, 6), image),
    "adaptive_avg_pool2d 28": (lambda x: F.adaptive_avg_pool2d(x, 28), image),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 50), signal),
    "adaptive_max_pool2d 20": (lambda x: F.adaptive_max_pool2d(x, 20), image),
    "adaptive_max_pool2d 28": (lambda x: F.adaptive_max_pool2d(x, 28), image),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 50), signal),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (6, 10, 10)), volume),
    "nearest x2": resized("nearest", image, scale_factor=2),
    "nearest to 80": resized("nearest", image, size=80),
    "nearest-exact to 80": resized("nearest-exact", image, size=80),
    "bilinear x2": resized("bilinear", image, scale_factor=2),
    "bilinear to 80, corners": resized("bilinear", image, size=80, align_corners=True),
    "bilinear to 24": resized("bilinear", image, size=24),
    "bicubic x2": resized("bicubic", image, scale_factor=2),
    "linear x2": resized("linear", signal, scale_factor=2),
    "trilinear x2": resized("trilinear", volume, scale_factor=2),
    "reflection_pad1d": padded("reflect", signal, 8, 8),
    "reflection_pad2d": padded("reflect", image, 3, 3, 3, 3),
    "replication_pad1d": padded("replicate", signal, 1, 1),
    "replication_pad2d": padded("replicate", image, 1, 1, 1, 1),
    "replication_pad3d": padded("replicate", volume, 1, 1, 1, 1, 1, 1),
    "bucketize": (lambda x: x * torch.bucketize(x, limits), rows),
    "searchsorted": (lambda x: x * torch.searchsorted(limits, x, right=True), rows),
    "searchsorted a number": (lambda x: x * torch.searchsorted(limits, 0.5), rows),
    "mask of values": (lambda x: x.index_put((mask,), chosen), rows),
    "masked_scatter": (lambda x: x.masked_scatter(mask, rows), rows),
    "im2col": (lambda x: F.unfold(x, 3, padding=1), image[:, :8]),
    "fold": (lambda x: F.fold(x, (56, 56), 2, stride=2), torch.randn(4, 32, 784)),
    "grid_sample few channels": (lambda x: F.grid_sample(x[:, :3], grid, align_corners=False), image),
    "grid_sample volume": (lambda x: F.grid_sample(x, cube, align_corners=False), volume),
    "grid_sample": (lambda x: F.grid_sample(x, grid, align_corners=False), image),
    "grid_sample border": (lambda x: F.grid_sample(x, grid, padding_mode="border", align_corners=False), image),
    "grid_sample nearest": (lambda x: F.grid_sample(x, grid, mode="nearest", align_corners=False), image),
    "shifts": (lambda x: x * (((whole >> some) << 2) ^ whole), rows),
    "xlogy": (lambda x: torch.xlogy(x, x.abs()), rows),
    "glu": (lambda x: F.glu(x), rows),
    "weight_norm": (lambda x: torch._weight_norm(x, rows[:, :1].abs(), 0), rows),
    "cdist by a product": (lambda x: torch.cdist(x, rows[:300]), rows),
    "cdist p 1": (lambda x: torch.cdist(x, rows[:300], p=1.0), rows),
    "logaddexp": (lambda x: torch.logaddexp(x, -x), rows),
    "linspace": (lambda x: x * torch.linspace(0, 1, 256), rows),
    "complex product": complex_numbers(lambda z: z * turn),
    "complex quotient": complex_numbers(lambda z: z / (turn + 2)),
    "complex sum": complex_numbers(lambda z: z + turn * 1j),
    "complex length": complex_numbers(lambda z: z * z.abs()),
    "complex angle": complex_numbers(lambda z: torch.polar(z.abs(), z.angle() * 2)),
    "complex exponential": complex_numbers(lambda z: torch.exp(-z)),
    "complex conjugate product of matrices": complex_numbers(lambda z: (z * turn) @ squares.conj()),
    "rotary embedding, bfloat16": complex_numbers(lambda z: z * turn, torch.bfloat16),
    "stack of pairs": (
        lambda x: torch.stack((-x[:, 1::2] * x[:, ::2], x[:, ::2] + x[:, 1::2]), -1).flatten(1),
        rows,
    ),
}


def step_of(run: Callable[..., torch.Tensor], x: torch.Tensor, train: bool) -> None:
    if train:
        x.grad = None
        run(x).sum().backward()
    else:
        with torch.no_grad():
            run(x)


def measure(program: Program, options: argparse.Namespace) -> dict[str, float]:
    """Microseconds of the least step of each system."""
    function, x = program
    x = x.to(memory_format=torch.channels_last) if options.channels_last and x.dim() == 4 else x
    x = x.detach().clone().requires_grad_(options.train)

    def between(y: torch.Tensor) -> torch.Tensor:
        return torch.relu(function(y * 2) + 1)

    argand.reset()
    systems: dict[str, Callable[..., Any]] = {"eager": between, "argand": argand.compile(between, dynamic=False)}
    if options.torch:
        torch._dynamo.reset()
        systems["torch.compile"] = torch.compile(between, dynamic=False)
    for run in systems.values():
        for _ in range(3):
            step_of(run, x, options.train)
    least = dict.fromkeys(systems, float("inf"))
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        for system, run in systems.items():
            start = time.process_time()
            for _ in range(3):
                step_of(run, x, options.train)
            least[system] = min(least[system], (time.process_time() - start) / 3)
    return {system: 1e6 * seconds for system, seconds in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, program in PROGRAMS.items():
        if not re.search(options.pattern, name):
            continue
        times = found[name] = measure(program, options)
        ratios = "  ".join(f"{s} {t:9.1f} us ({times['eager'] / t:5.2f}x)" for s, t in times.items())
        print(f"{name:34s} {ratios}" + ("  slower" if times["argand"] > 1.1 * times["eager"] else ""), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
