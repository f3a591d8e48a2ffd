"""`torch.autograd.functional` and `torch.func` of compiled functions: eager's results, or an error that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.autograd.functional as functional
from torch import func, nn

import argand
import sweeps

LAYER = nn.Linear(3, 3)
PROGRAMS: dict[str, Callable[..., Any]] = {
    "a number": lambda x: (x.sin() * x).sum(),
    "a layer": lambda x: LAYER(x).tanh(),
}


def dual(fn: Any, x: Any, v: Any) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(fn(forward_ad.make_dual(x, v))))


def batched(fn: Any, x: Any, v: Any) -> Any:
    x = x.clone().requires_grad_()
    y = fn(x) * v
    return torch.autograd.grad(y, x, torch.eye(3).expand(2, 3, 3)[1], is_grads_batched=True)


FIRST: dict[str, Callable[..., Any]] = {
    "functional.vjp": lambda f, x, v: functional.vjp(lambda y: f(y).sum(), x),
    "functional.jacobian": lambda f, x, v: functional.jacobian(f, x),
    "functional.jacobian, kept": lambda f, x, v: functional.jacobian(f, x, create_graph=True).detach(),
    "functional.jacobian, vectorized": lambda f, x, v: functional.jacobian(f, x, vectorize=True),
    "functional.jacobian, forward": lambda f, x, v: functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "batched gradients": batched,
    "dual numbers": dual,
    "func.grad": lambda f, x, v: func.grad(lambda y: f(y).sum())(x),
    "func.grad twice": lambda f, x, v: func.grad(lambda z: func.grad(lambda y: f(y).sum())(z).sum())(x),
    "func.vmap": lambda f, x, v: func.vmap(f)(torch.stack([x, v])),
    "func.vmap of func.grad": lambda f, x, v: func.vmap(func.grad(lambda y: f(y).sum()))(torch.stack([x, v])),
    "func.jvp": lambda f, x, v: func.jvp(f, (x,), (v,)),
    "func.vjp": lambda f, x, v: func.vjp(lambda y: f(y).sum(), x)[1](torch.tensor(1.0)),
    "func.jacrev": lambda f, x, v: func.jacrev(f)(x),
    "func.jacfwd": lambda f, x, v: func.jacfwd(f)(x),
    "func.hessian": lambda f, x, v: func.hessian(lambda y: f(y).sum())(x),
    "func.linearize": lambda f, x, v: func.linearize(f, x)[1](v),
}
# through a gradient of a gradient
SECOND: dict[str, Callable[..., Any]] = {
    "functional.jvp": lambda f, x, v: functional.jvp(f, x, v),
    "functional.hvp": lambda f, x, v: functional.hvp(lambda y: f(y).sum(), x, v),
    "functional.vhp": lambda f, x, v: functional.vhp(lambda y: f(y).sum(), x, v),
    "functional.hessian": lambda f, x, v: functional.hessian(lambda y: f(y).sum(), x),
    "functional.hessian, vectorized": lambda f, x, v: functional.hessian(lambda y: f(y).sum(), x, vectorize=True),
}


def results(use: Callable[..., Any], fn: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that vmap loops over an operation
        return use(fn, torch.tensor([0.3, 0.5, 0.7]), torch.tensor([1.0, -1.0, 2.0]))


@pytest.mark.parametrize(
    ("warm", "backend", "program"), sweeps.combinations([False, True], ["eager", "aot_eager", "native"], PROGRAMS)
)
def test_functions_of_gradients_are_eagers(program: str, backend: str, warm: bool) -> None:
    fn = PROGRAMS[program]
    for name, use in (FIRST | SECOND).items():
        if name == "batched gradients" and program == "a number":
            continue
        argand.reset()
        compiled = argand.compile(fn, backend=backend)
        if warm:
            compiled(torch.ones(3)), compiled(torch.ones(3).requires_grad_()).sum().backward()
        for _ in range(2):
            torch.testing.assert_close(results(use, compiled), results(use, fn), msg=lambda text: f"{name}: {text}")
