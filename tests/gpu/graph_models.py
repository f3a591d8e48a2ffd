"""A small model for the tests of CUDA graphs, how it is compiled and compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import argand


def compiled(function: Any, **options: Any) -> Any:
    return argand.compile(function, mode="reduce-overhead", **options)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.norm(self.first(x))))
