"""Code of the program's that runs within a backward, and changes what else the backward runs: as in eager, however much
of the step is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import argand
from argand.engine.entries import Trial
from helpers import assert_same, collected

Log = list[Any]
Step = Callable[[torch.Tensor, torch.Tensor, int, Log], None]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def hook_puts_a_hook(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = x * w

    def hook(grad: torch.Tensor) -> None:
        y.register_hook(lambda grad: log.append(grad.clone()))

    z = y.sin()
    z.register_hook(hook)
    z.sum().backward()


def hook_puts_a_hook_on_a_functions_result(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = Doubled.apply(x * w)

    def hook(grad: torch.Tensor) -> None:
        y.register_hook(lambda grad: grad * 3)

    z = y.sin()
    z.register_hook(hook)
    z.sum().backward()


def hook_retains_a_gradient(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = x * w
    z = y.sin()
    z.register_hook(lambda grad: y.retain_grad())
    z.sum().backward()
    log.append(y.grad)


def hook_removes_a_hook(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = x * w
    handle = y.register_hook(lambda grad: log.append(grad.clone()))
    z = y.sin()
    z.register_hook(lambda grad: handle.remove())
    (z * 2).sum().backward()


def hook_puts_a_hook_on_a_leaf(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = x * w
    handles = []

    def hook(grad: torch.Tensor) -> None:
        handles.append(w.register_hook(lambda grad: log.append(grad.clone())))

    y.register_hook(hook)
    y.sin().sum().backward()
    handles[0].remove()


def hook_changes_the_dtype(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = x * w
    y.register_hook(lambda grad: grad.double())
    y.sum().backward()


def hook_of_a_leaf_changes_the_layout(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    w.grad = None
    handle = w.register_hook(lambda grad: grad.t())
    (x * w).sum().backward()
    handle.remove()


def too_few_gradients(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    TooFew.apply(x * w, w).sum().backward()


def checkpoints_in_each_other(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return (y @ w.t()).tanh()

    def outer(y: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, y, use_reentrant=False) + y @ w.sin().t()

    checkpoint(outer, x * w, use_reentrant=False).sin().sum().backward()


def hook_on_the_node_of_a_reentrant_checkpoint(x: torch.Tensor, w: torch.Tensor, step: int, log: Log) -> None:
    y = checkpoint(torch.sin, x * w, use_reentrant=True)
    y.grad_fn.register_prehook(lambda grads: log.append(grads[0].clone()))
    y.exp().sum().backward()


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        hook_puts_a_hook,
        hook_puts_a_hook_on_a_functions_result,
        hook_retains_a_gradient,
        hook_removes_a_hook,
        hook_puts_a_hook_on_a_leaf,
        hook_changes_the_dtype,
        hook_of_a_leaf_changes_the_layout,
        too_few_gradients,
        checkpoints_in_each_other,
        hook_on_the_node_of_a_reentrant_checkpoint,
    )
}


def outcome(step: Step, captured: bool, recorded: bool) -> list[Any]:
    """Errors, what was seen, and the gradient with its strides, step by step."""
    torch.manual_seed(0)
    w, seen = torch.randn(4, 4, requires_grad=True), []
    run = argand.compile(step, backend="eager") if captured else step
    for at in range(4):
        log: Log = []
        error = ""
        try:
            if recorded:
                with argand.compiled_autograd(backend="eager"):
                    run(torch.randn(4, 4), w, at, log)
            else:
                run(torch.randn(4, 4), w, at, log)
        except RuntimeError as raised:
            error = str(raised)
        seen.append((error, log, None if w.grad is None else (w.grad.clone(), w.grad.stride())))
    return seen


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("captured", "recorded"), [(True, False), (False, True), (True, True)])
def test_steps_are_eagers(name: str, captured: bool, recorded: bool) -> None:
    assert_same(outcome(STEPS[name], False, False), outcome(STEPS[name], captured, recorded))


def test_a_hook_that_was_not_put_when_the_backward_was_recorded_is_an_error_once() -> None:
    w, called = torch.ones(3, requires_grad=True), []

    def step(puts: bool) -> None:
        y = w * 2
        z = y.sin()
        z.register_hook(lambda grad: y.register_hook(called.append) and None if puts else None)
        z.sum().backward()

    with argand.compiled_autograd(backend="eager"), collected("compiled_autograd_graph") as graphs:
        step(False)
        step(False)
        assert graphs
        with pytest.raises(RuntimeError, match="put a hook on a tensor"):
            step(True)
        called.clear()
        step(True)
    assert len(called) == 1
