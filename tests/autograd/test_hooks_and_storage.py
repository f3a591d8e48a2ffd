"""Hooks, `retain_grad` and storage changes inside compiled functions: eager's results, or a break that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

Use = Callable[[Callable[..., Any]], list[Any]]


def leaf(*size: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(*size, requires_grad=True)


def hook_on_an_input(wrap: Callable[..., Any]) -> list[Any]:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 2)
        return (x * w).sum()

    x, w = leaf(3), leaf(3)
    wrap(fn)(x, w).backward()
    return [x.grad, w.grad]


def hook_on_an_intermediate(wrap: Callable[..., Any]) -> list[Any]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g.clamp(max=0.5))
        return (y * y).sum()

    x = leaf(3)
    wrap(fn)(x).backward()
    return [x.grad]


def hook_that_notes(wrap: Callable[..., Any]) -> list[Any]:
    noted: list[torch.Tensor] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: noted.append(g.clone()))
        return (y * y).sum()

    x = leaf(3)
    wrap(fn)(x).backward()
    return [x.grad, *noted]


def hook_on_a_result(wrap: Callable[..., Any]) -> list[Any]:
    noted: list[torch.Tensor] = []
    x = leaf(3)
    one, two = wrap(lambda x: (x * 2, x.sin()))(x)
    one.register_hook(lambda g: noted.append(g) or g * 3)
    (one.sum() + two.sum()).backward()
    return [x.grad, *noted]


def hook_that_goes_away(wrap: Callable[..., Any]) -> list[Any]:
    noted: list[torch.Tensor] = []
    x, call = leaf(3), wrap(lambda x: (x * x).sum())
    handle = x.register_hook(lambda g: noted.append(g.clone()))
    call(x).backward()
    handle.remove()
    call(x).backward()
    return [x.grad, *noted]


def hook_after_accumulation(wrap: Callable[..., Any]) -> list[Any]:
    noted: list[torch.Tensor] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.register_post_accumulate_grad_hook(lambda p: noted.append(p.grad.clone()))
        return (x * x).sum()

    x = leaf(3)
    wrap(fn)(x).backward()
    return [x.grad, *noted]


def retained_inside(wrap: Callable[..., Any]) -> list[Any]:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        y.retain_grad()
        return (y * y).sum(), y

    x = leaf(3)
    loss, y = wrap(fn)(x)
    loss.backward()
    return [x.grad, y.grad]


def retained_outside(wrap: Callable[..., Any]) -> list[Any]:
    x = leaf(3)
    y = wrap(lambda x: x * 2)(x)
    y.retain_grad()
    y.pow(2).sum().backward()
    return [x.grad, y.grad]


def results_with_and_without(wrap: Callable[..., Any]) -> list[Any]:
    x, unused = leaf(3), leaf(3)
    out = wrap(lambda x, n, u: (x * 2, n * 2, x.detach() * 3, x > 0, x.argmax(), u))(x, torch.ones(3), unused)
    out[0].sum().backward()
    assert unused.grad is None and out[5] is unused
    return [x.grad, torch.tensor([t.requires_grad for t in out])]


def storage_that_is_set(wrap: Callable[..., Any]) -> list[Any]:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.set_(x.detach())
        return (x * y).sum()

    x, y = leaf(3), torch.ones(3)
    wrap(fn)(x, y).backward()
    return [x.grad, y]


def input_that_is_resized(wrap: Callable[..., Any]) -> list[Any]:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.resize_(2, 1)
        return (x * 2).sum() + y.sum()

    x, y = leaf(3), torch.ones(3)
    wrap(fn)(x, y).backward()
    return [x.grad, y]


def data_that_is_replaced(wrap: Callable[..., Any]) -> list[Any]:
    def fn(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        p.data = x * 2
        return (p * x).sum()

    p = leaf(3)
    wrap(fn)(p, torch.ones(3)).backward()
    return [p.grad, p.detach()]


USES: list[Use] = [
    hook_on_an_input, hook_on_an_intermediate, hook_that_notes, hook_on_a_result, hook_that_goes_away,
    hook_after_accumulation, retained_inside, retained_outside, results_with_and_without, storage_that_is_set,
    input_that_is_resized, data_that_is_replaced,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("use", USES)
def test_as_eager(use: Use, backend: str) -> None:
    argand.reset()
    want = use(lambda f: f)
    torch.testing.assert_close(use(lambda f: argand.compile(f, backend=backend)), want)
