"""Dtypes and layouts of gradients: converted where eager converts them, expanded where eager expands them."""

from __future__ import annotations

from collections.abc import Callable
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


EXPANDED = {
    "rows": lambda x, y: x.sum(0) + y.sum(0),
    "all": lambda x, y: x.sum() * 2 + y.mean(),
    "kept": lambda x, y: x.t().sum(1, keepdim=True) + y.view(-1).sum(),
    "one sum": lambda x, y: (x + y).sum(1),
    "beside others": lambda x, y: x.sum(0) * 3 + y[0].exp(),
    "twice": lambda x, y: (x + y).sum() + x.sum(0)[0],
    "product": lambda x, y: x.sum(1) @ y,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EXPANDED)
def test_gradients_that_are_expanded_are_laid_out_as_eagers(name: str, dynamic: bool) -> None:
    """They share the memory that eager's do: with each other, and with the gradient that came in."""
    function = EXPANDED[name]

    def seen(run: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        torch.manual_seed(0)
        inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
        result = run(*inputs)
        given = torch.randn_like(result)
        grads = torch.autograd.grad(result, inputs, given, retain_graph=True)
        every = [*grads, given]
        places = [one.untyped_storage().data_ptr() for one in every]
        same = [(a is b, p == q) for a, p in zip(every, places) for b, q in zip(every, places)]
        values = [grad.clone() for grad in grads]
        refused = []
        for grad in grads:
            try:
                grad.add_(1)
            except RuntimeError as error:
                refused.append(str(error))
        for _ in range(2):
            result.backward(given, retain_graph=True)
        accumulated = [leaf.grad for leaf in inputs]
        strides = [grad.stride() for grad in [*grads, *accumulated]]
        return strides, same, refused, given, [*values, *accumulated]

    compiled = argand.compile(function, fullgraph=True, dynamic=dynamic)
    *expected, values = seen(function)
    *actual, others = seen(compiled)
    torch.testing.assert_close(actual.pop(), expected.pop())  # what came in
    assert actual == expected and any(0 in stride for stride in expected[0])
    torch.testing.assert_close(others, values)
