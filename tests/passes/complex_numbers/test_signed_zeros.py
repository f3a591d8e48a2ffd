"""Arithmetic of real and complex numbers at zeros of both signs and infinities: bit by bit as eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

NUMBERS = (complex(-0.0, -0.0), complex(0.0, -0.0), complex(math.inf, 1), complex(1, math.inf), 1j, complex(-1, 0))
COMPLEX: dict[str, Callable[[torch.Tensor, complex], torch.Tensor]] = {
    "product": lambda x, z: x * z,
    "sum": lambda x, z: x + z,
    "difference": lambda x, z: x - z,
    "turned difference": lambda x, z: z - x,
    "quotient": lambda x, z: z / x,
    "scaled difference": lambda x, z: torch.sub(x + z, x + 1j, alpha=2),
}
REAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "minus -0": lambda x: x - (-0.0),
    "minus 0": lambda x: x - 0.0,
    "plus -0": lambda x: x + (-0.0),
    "plus 0": lambda x: x + 0.0,
    "0 minus": lambda x: 0.0 - x,
}


def bits(values: torch.Tensor) -> list[Any]:
    return [(repr(value.real), repr(value.imag)) for value in values.to(torch.complex128).tolist()]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [COMPLEX[name](x, number) for number in NUMBERS]

    x = torch.tensor([1.0, -1.0, 0.0, -0.0, math.inf, -math.inf, 2.0])
    for ours, theirs in zip(argand.compile(program)(x), program(x), strict=True):
        assert bits(ours) == bits(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_real_numbers(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in REAL.values()]

    x = torch.tensor([0.0, -0.0, 1.0, -1.0], dtype=dtype)
    for ours, theirs in zip(argand.compile(program)(x), program(x), strict=True):
        assert bits(ours) == bits(theirs)
