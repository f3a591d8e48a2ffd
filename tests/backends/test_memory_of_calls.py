"""What a call was given dies when eager would let it die, without the garbage collector: inputs, results, in-betweens."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
import sweeps

w = torch.randn(8, 8)
seen: list[weakref.ref[torch.Tensor]] = []


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    seen.clear()
    yield
    gc.enable()


def inference(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) * 2


def written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def training(x: torch.Tensor) -> torch.Tensor:
    return (x.requires_grad_() * x).sin().sum()


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    seen.append(weakref.ref(y))
    z = y + 1
    del y
    return z * 2


def raising(x: torch.Tensor) -> torch.Tensor:
    return (x @ w).view(3, 5)


def leaf(x: torch.Tensor) -> torch.Tensor:
    d = torch.zeros_like(x, requires_grad=True)
    seen.append(weakref.ref(d))
    return (x * d).sum()


def refused(x: torch.Tensor) -> torch.Tensor:
    """The backend cannot trace it."""
    y = x * 2
    return y.unfold(0, 2, 1).add_(1)


PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    inference, written, training, with_a_break, raising, leaf, refused,
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "program", "rows"), sweeps.combinations(["eager", "aot_eager", "native"], PROGRAMS, [(4, 4), (4, 5, 6)])
)
def test_nothing_stays(program: Callable[..., Any], backend: str, rows: tuple[int, ...]) -> None:
    compiled = argand.compile(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in rows:
            x = torch.randn(count, 8)
            seen.append(weakref.ref(x))
            with contextlib.suppress(RuntimeError):
                result = compiled(x)
                seen.append(weakref.ref(result))
                if result.requires_grad:
                    result.sum().backward()
                del result
            del x
            assert [one() for one in seen] == [None] * len(seen)
