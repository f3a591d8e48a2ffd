"""Depthwise convolutions on a GPU: microseconds of ATen's kernels and of argand's, which are loops.

    python bench/gpu_depthwise.py [--dtype bfloat16] [--batch 32] [--rows] [--only 3x3]

"forward" is a convolution and a hard-swish, "input" the gradient of its input, "both" those of input and weight. The
channels are innermost; with `--rows` they are not. Calls are queued before they run, so that no time of the CPU is in
the figures. Ends with the geometric mean of ATen's time over argand's in each column.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import argand
from argand.runtime.gpu.device.timing import time_calls

# channels, height and width, window, stride: of MobileNetV2 and V3, EfficientNet, ConvNeXt
SHAPES = (
    (16, 112, 3, 1), (64, 112, 3, 2), (144, 56, 3, 1), (72, 56, 5, 2), (240, 28, 5, 1), (480, 14, 3, 1),
    (672, 14, 5, 2), (960, 7, 5, 1), (96, 56, 7, 1), (384, 14, 7, 1),
)  # fmt: skip
KINDS = ("forward", "input", "both")
aten = torch.ops.aten


def functions(channels: int, size: int, stride: int) -> dict[str, Callable[..., Any]]:
    """What is timed, of a gradient, an image and a weight."""

    def gradients(mask: list[bool]) -> Callable[..., Any]:
        def backward(grad: Any, x: Any, weight: Any) -> Any:
            places = ([stride] * 2, [size // 2] * 2, [1, 1], False, [0, 0], channels)
            found = aten.convolution_backward(grad, x, weight, None, *places, mask)
            return [one for one, wanted in zip(found, mask) if wanted]

        return backward

    def forward(grad: Any, x: Any, weight: Any) -> Any:
        return [F.hardswish(F.conv2d(x, weight, None, stride, size // 2, 1, channels))]

    return {"forward": forward, "input": gradients([True, False, False]), "both": gradients([True, True, False])}


def measure(shape: tuple[int, int, int, int], batch: int, dtype: torch.dtype, rows: bool) -> dict[str, list[float]]:
    """Microseconds of ATen and argand for each kind; fails where they disagree."""
    channels, extent, size, stride = shape
    generator = torch.Generator("cuda").manual_seed(0)
    layout = torch.contiguous_format if rows else torch.channels_last

    def numbers(*sizes: int) -> torch.Tensor:
        made = torch.randn(sizes, device="cuda", generator=generator)
        return made.to(dtype).contiguous(memory_format=layout)

    out = (extent - 1) // stride + 1
    args = (
        numbers(batch, channels, out, out),
        numbers(batch, channels, extent, extent),
        numbers(channels, 1, size, size),
    )
    found = {}
    for kind, function in functions(channels, size, stride).items():
        argand.reset()
        compiled = argand.compile(function, dynamic=False)
        for made, expected in zip(compiled(*args), function(*[each.double() for each in args])):
            error = float((made.double() - expected).norm() / expected.norm())
            assert error < (1e-5 if dtype is torch.float32 else 1e-2), f"{kind} of {shape}: error {error}"
        calls = [lambda function=function: function(*args), lambda compiled=compiled: compiled(*args)]
        found[kind] = time_calls(calls, args[0].device)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rows", action="store_true", help="contiguous images")
    parser.add_argument("--only", default="", help="sizes of windows: 3x3")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    argand.config.triton.cudagraphs = False
    dtype = getattr(torch, options.dtype)
    print(f"{torch.cuda.get_device_name()}, {options.dtype}, batch {options.batch}: ATen / argand, microseconds")
    print(f"{'shape':24}" + "".join(f"{kind:>26}" for kind in KINDS), flush=True)
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with torch.no_grad():
        for shape in SHAPES:
            channels, extent, size, stride = shape
            if options.only and options.only != f"{size}x{size}":
                continue
            found = measure(shape, options.batch, dtype, options.rows)
            for kind, (before, after) in found.items():
                ratios[kind].append(before / after)
            columns = [f"{a:8.1f} /{b:8.1f} {a / b:6.2f}x" for a, b in found.values()]
            name = f"{channels} x {extent}^2, {size}x{size}/{stride}"
            print(f"{name:24}" + "".join(f"{column:>26}" for column in columns), flush=True)
    means = {kind: math.exp(sum(map(math.log, found)) / len(found)) for kind, found in ratios.items() if found}
    print("geometric mean: " + ", ".join(f"{kind} {mean:.2f}x" for kind, mean in means.items()))


if __name__ == "__main__":
    main()
