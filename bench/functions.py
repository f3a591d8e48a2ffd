"""Elementwise functions, one at a time: time of eager's kernel over that of argand's, one thread.

    python bench/functions.py [--all] [--elements N]

Prints those that are a quarter slower than eager's, beyond what a call costs; --all prints every one. Exits with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import argand

ONE = """tan asin acos atan sinh cosh asinh acosh atanh erfc erf erfinv lgamma digamma i0 sin cos exp log log2 log10
log1p expm1 exp2 tanh sigmoid sqrt rsqrt frac trunc round floor sinc logit mish softplus gelu silu hardswish"""
TWO = "atan2 fmod remainder pow hypot copysign floor_divide nextafter logaddexp xlogy maximum"


def least(function: Callable[..., Any], args: tuple[torch.Tensor, ...], times: int = 9) -> float:
    """Milliseconds of the fastest of some calls."""
    function(*args)
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        function(*args)
        best = min(best, time.perf_counter() - begun)
    return best * 1e3


def function_of(name: str) -> Callable[..., Any]:
    found = getattr(torch, name, None) or getattr(F, name, None) or getattr(torch.special, name)
    return lambda *args: found(*args)


def main() -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("--all", action="store_true")
    ap.add_argument("--elements", type=int, default=1 << 16)
    args = ap.parse_args()
    torch.set_num_threads(1)
    slow = 0
    for dtype in (torch.float32, torch.float64):
        for name in [*ONE.split(), *TWO.split()]:
            tensors = [torch.rand(args.elements, dtype=dtype) * 0.8 + (1.1 if name == "acosh" else 0.1)]
            tensors += [torch.rand(args.elements, dtype=dtype) * 0.8 + 0.1] * (name in TWO.split())
            argand.reset()
            function = function_of(name)
            eager, ours = least(function, tuple(tensors)), least(argand.compile(function), tuple(tensors))
            slower = ours > 1.25 * eager + 0.01
            slow += slower
            if args.all or slower:
                print(f"{str(dtype)[6:]:8} {name:14} eager {eager:7.3f} ms, argand {ours:7.3f} ms: {eager / ours:.2f}")
    print(f"{slow} slower than eager's" if slow else "none is slower than eager's")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
