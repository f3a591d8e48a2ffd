"""Least time of a backward with compiled autograd over that without, interleaved in one process.

python bench/compiled_autograd.py [--rounds 40] [--threads 1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import argand


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def blocks(width: int, depth: int, broken: bool) -> Callable[[], nn.Module]:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
                if broken:
                    argand.graph_break()
            return x

    return Stack


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "eager, tiny (8 x 16, 4 blocks)": (blocks(16, 4, False), (8, 16), False),
    "eager, small (64 x 128, 4 blocks)": (blocks(128, 4, False), (64, 128), False),
    "eager, middling (256 x 256, 4 blocks)": (blocks(256, 4, False), (256, 256), False),
    "compiled, broken (64 x 128, 4 blocks)": (blocks(128, 4, True), (64, 128), True),
    "compiled, whole, tiny (8 x 16, 4 blocks)": (blocks(16, 4, False), (8, 16), True),
}


def backward(model: Any, x: torch.Tensor, on: bool) -> float:
    """Seconds of one backward."""
    for parameter in model.parameters():
        parameter.grad = None
    with argand.compiled_autograd() if on else argand.config.patch(compiled_autograd=False):
        loss = model(x).square().mean()
        began = time.perf_counter()
        loss.backward()
        return time.perf_counter() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--threads", type=int, default=1)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"{'program':45} {'engine, us':>12} {'compiled, us':>12} {'ratio':>7}")
    for name, (make, size, compiled) in PROGRAMS.items():
        torch.manual_seed(0)
        model: Any = make()
        model = argand.compile(model) if compiled else model
        x = torch.randn(*size)
        times: dict[bool, list[float]] = {False: [], True: []}
        for round in range(asked.rounds + 3):
            for on in (False, True):
                taken = backward(model, x, on)
                if round >= 3:
                    times[on].append(taken)
        off, on = (min(times[which]) * 1e6 for which in (False, True))
        print(f"{name:45} {off:12.0f} {on:12.0f} {on / off:7.2f}", flush=True)


if __name__ == "__main__":
    main()
