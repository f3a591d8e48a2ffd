"""Random programs over random dynamic dimensions: compiled once, run at six sizes, against eager."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from dynamic_helpers import check_sizes

SIZES = (2, 3, 5, 8, 16, 17, 31, 64, 100)


def _pointwise(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return rng.choice(
        [
            lambda: x * 2 + 1,
            lambda: torch.sigmoid(x),
            lambda: x.abs().sqrt(),
            lambda: torch.where(x > 0.5, x, -x),
            lambda: x.clamp(0.1, 0.9),
            lambda: x + x.size(rng.randrange(x.dim())),
            lambda: x * torch.arange(x.size(-1)).to(x.dtype) / 64,
        ]
    )()


def _reduction(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    dim = rng.randrange(x.dim())
    keep = x.dim() < 2 or rng.random() < 0.5
    return rng.choice(
        [
            lambda: x.mean(dim, keepdim=keep),
            lambda: x.amax(dim, keepdim=keep),
            lambda: x.softmax(dim),
            lambda: x - x.mean(dim, keepdim=True),
            lambda: x.var(dim, keepdim=keep, correction=0),
            lambda: x.log_softmax(dim),
        ]
    )()


def _view(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    dim = rng.randrange(x.dim())
    return rng.choice(
        [
            lambda: x.transpose(0, -1),
            lambda: x.flatten(),
            lambda: x.unsqueeze(dim),
            lambda: x.reshape(x.size(0), -1),
            lambda: x.narrow(dim, 0, x.size(dim) - 1) if x.size(dim) > 1 else x,
            lambda: x.flip(dim),
            lambda: torch.cat([x, x * 2], dim),
            lambda: x.contiguous().view(-1).view(x.shape),
            lambda: x.expand(2, *x.shape),
            lambda: x.movedim(0, -1),
        ]
    )()


def program(seed: int, length: int) -> Any:
    """A function of a tensor that takes the same random steps in every call."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        rng = random.Random(seed)
        kept = []
        for _ in range(length):
            step = rng.choice([_pointwise, _pointwise, _reduction, _view])
            x = step(x, rng)
            if x.dim() > 4 or x.dim() == 0:
                x = x.reshape(-1)
            if rng.random() < 0.25:
                kept.append(x)
        return x, x * y.sum(), kept

    return fn


def _rand(size: Any, generator: torch.Generator) -> torch.Tensor:
    """Doubles: a chain of reductions in single precision may lose every digit, here as in eager."""
    return torch.rand(size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int) -> None:
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 2, 3))
    dynamic = [dim for dim in range(rank) if rng.random() < 0.6] or [0]
    static = [rng.choice((4, 7, 12)) for _ in range(rank)]
    names = {dim: rng.choice(("a", "b")) if rank == 3 else f"d{dim}" for dim in dynamic}

    def make(*sizes: int) -> list[torch.Tensor]:
        given = dict(zip(sorted(set(names.values())), sizes))
        shape = [given[names[dim]] if dim in names else static[dim] for dim in range(rank)]
        generator = torch.Generator().manual_seed(sum(shape))
        return [_rand(shape, generator), _rand(static[0], generator)]

    count = len(set(names.values()))
    sizes = [tuple(rng.sample(SIZES, count)) for _ in range(6)]
    check_sizes(program(seed, rng.randint(2, 7)), make, {0: names}, sizes, general=False)
