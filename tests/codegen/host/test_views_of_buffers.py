"""Views of buffers that products read, of which some are freed before others are made."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

import argand
from sweeps import part

SIDES = ((32, 16), (16, 32), (8, 64), (64, 8))


@dataclass(frozen=True)
class View:
    """A base as a matrix, perhaps another matrix's transpose."""

    base: int
    sides: tuple[int, int]
    transposed: bool

    def of(self, bases: list[torch.Tensor]) -> torch.Tensor:
        seen = bases[self.base].view(self.sides)
        return seen.t() if self.transposed else seen

    @property
    def size(self) -> tuple[int, ...]:
        return self.sides[::-1] if self.transposed else self.sides


def products(seed: int, bases: int) -> list[tuple[View, View]]:
    """Products of views; each base is read last at some other time."""
    choice = random.Random(seed)
    alive, found = list(range(bases)), []
    while alive:
        left, *others = (View(choice.choice(alive), choice.choice(SIDES), choice.random() < 0.5) for _ in range(12))
        found += [(left, other) for other in others if left.size[1] == other.size[0]][:2]
        if choice.random() < 0.4:
            alive.pop(choice.randrange(len(alive)))
    return found


def program(plan: list[tuple[View, View]], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    bases = [*inputs, *[one * (2 + k) for k, one in enumerate(inputs)]]
    return [left.of(bases) @ right.of(bases) for left, right in plan]


@pytest.mark.parametrize("seed", range(part(60, 3)))
def test_products_of_views(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = tuple(torch.randn(512) for _ in range(3))
    plan = products(seed, 6)
    got = argand.compile(lambda *args: program(plan, args), fullgraph=True)(*inputs)
    for a, b in zip(program(plan, inputs), got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-3)


def test_a_view_that_is_freed_leaves_its_name_to_nobody() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, doubled = x.view(32, 16), y * 2
        return rows @ w, doubled.t() @ rows, doubled.view(16, 32) @ z

    torch.manual_seed(0)
    args = torch.randn(4, 8, 16), torch.randn(32, 16), torch.randn(16, 8), torch.randn(32, 8)
    for a, b in zip(function(*args), argand.compile(function)(*args)):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
