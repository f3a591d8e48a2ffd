"""Gradients of other dtypes than the leaves: converted where eager converts them, and not where a leaf says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand


class Wide(torch.autograd.Function):
    """Its gradient is float32 whatever it was given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


def wide(w: torch.Tensor) -> torch.Tensor:
    return Wide.apply(w).sum()


def both(w: torch.Tensor) -> torch.Tensor:
    return Wide.apply(w).sum() + (w * 1.7).float().sum()


def step(w: torch.Tensor) -> torch.Tensor:
    loss = wide(w)
    loss.backward()
    return loss.detach()


def gradients(fn: Any, asked: Any) -> list[torch.Tensor]:
    """What arrives in turn in leaves that ask for gradients of these dtypes."""
    seen = []
    for dtype in asked:
        w = torch.full((4,), 0.3, dtype=torch.bfloat16, requires_grad=True)
        if dtype != "own":
            w.grad_dtype = dtype
        loss = fn(w)
        if loss.requires_grad:
            loss.backward()
        seen.append(w.grad)
    return seen


@pytest.mark.parametrize("fn", [wide, both, step])
@pytest.mark.parametrize("first", ["own", None, torch.float32])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_have_the_dtypes_that_leaves_ask_for(fn: Any, first: Any, backend: str) -> None:
    asked = [first, "own", None, torch.float32, "own"]
    want = gradients(fn, asked)
    got = gradients(argand.compile(fn, backend=backend), asked)
    assert [g.dtype for g in got] == [g.dtype for g in want]
    torch.testing.assert_close(got, want)
