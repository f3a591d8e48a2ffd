"""`torch.autograd.functional` called in compiled functions: torch's Python code is interpreted, its gradients are in the
graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from torch.utils import _pytree as pytree

import argand
import sweeps

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def cube(x: torch.Tensor) -> torch.Tensor:
    return (x * x * x).sum(0)


def total(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def pair(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * w).sum(0), x.exp()


@torch.no_grad()
def without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    return hvp(total, x, w)


def in_batch(x: torch.Tensor, w: torch.Tensor) -> Any:
    leaf, other = x.detach().requires_grad_(), w.detach().requires_grad_()
    seeds = torch.eye(2)
    return torch.autograd.grad(cube(leaf), (leaf, other), seeds, is_grads_batched=True, materialize_grads=True)


PROGRAMS: dict[str, Program] = {
    "jacobian": lambda x, w: jacobian(cube, x),
    "jacobian of several": lambda x, w: jacobian(pair, (x, w)),
    "jacobian, differentiable": lambda x, w: jacobian(lambda a: cube(a) * w.sum(), x, create_graph=True),
    "hessian": lambda x, w: hessian(total, x),
    "hessian of several": lambda x, w: hessian(lambda a, b: (a * b).sum() ** 2, (x, w)),
    "hessian, differentiable": lambda x, w: hessian(lambda a: (total(a) * w.sum()) ** 2, x, create_graph=True),
    "vjp": lambda x, w: vjp(cube, x, w[0]),
    "vjp, differentiable": lambda x, w: vjp(lambda a: cube(a) * w[0], x, w[0], create_graph=True),
    "vjp of several": lambda x, w: vjp(pair, (x, w), (w[0], x)),
    "jvp": lambda x, w: jvp(cube, x, w),
    "jvp, differentiable": lambda x, w: jvp(lambda a: cube(a) * w[0], x, w, create_graph=True),
    "hvp": lambda x, w: hvp(total, x, w),
    "vhp": lambda x, w: vhp(total, x, w),
    "in a loss": lambda x, w: (jacobian(lambda a: (a * w).sin().sum(1), x, create_graph=True) ** 2).mean() + w.sum(),
    "without gradients": lambda x, w: without_gradients(x, w),
    "jacobian by vmap": lambda x, w: jacobian(cube, x, vectorize=True),
    "jacobian of several by vmap": lambda x, w: jacobian(pair, (x, w), vectorize=True),
    "jacobian by vmap, differentiable": lambda x, w: jacobian(
        lambda a: cube(a) * w.sum(), x, vectorize=True, create_graph=True
    ),
    "hessian by vmap": lambda x, w: hessian(total, x, vectorize=True),
    "jacobian by forward mode": lambda x, w: jacobian(cube, x, vectorize=True, strategy="forward-mode"),
    "jacobian of several by forward mode": lambda x, w: jacobian(pair, (x, w), vectorize=True, strategy="forward-mode"),
    "jacobian of what is constant": lambda x, w: jacobian(
        lambda a: (a.sin(), w * 2), x, vectorize=True, strategy="forward-mode"
    ),
    "hessian by forward mode": lambda x, w: hessian(
        lambda a: (total(a) * w.sum()) ** 2, x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "gradients of a batch": lambda x, w: in_batch(x, w),
    "strict jvp": lambda x, w: jvp(lambda a: a * a, x, w, strict=True, create_graph=True),
    "strict": lambda x, w: hessian(total, x, strict=True),
}

REFUSED: dict[str, Program] = {
    "no scalar": lambda x, w: hessian(cube, x),
    "vector of another size": lambda x, w: vjp(cube, x, w),
    "no tensor": lambda x, w: jacobian(lambda a: 3, x),  # type: ignore[arg-type,return-value]
    "strict, and independent": lambda x, w: jacobian(lambda a: w * 2, x, strict=True),
    "no number, in forward mode": lambda x, w: hessian(cube, x, vectorize=True, outer_jacobian_strategy="forward-mode"),
    "no tensor, in forward mode": lambda x, w: jacobian(
        lambda a: 3,
        x,
        vectorize=True,
        strategy="forward-mode",  # type: ignore[arg-type,return-value]
    ),
}


def outcome(program: Program, grad: bool) -> Any:
    x = (torch.arange(6.0).view(3, 2) / 5 + 0.1).requires_grad_(grad)
    w = (torch.arange(6.0).view(3, 2).cos()).requires_grad_(grad)
    try:
        results = pytree.tree_leaves(program(x, w))
    except Exception as error:
        return type(error), str(error)
    shown = [(y.detach(), y.requires_grad, y.shape) for y in results]
    for y in results:
        if y.requires_grad:
            y.square().sum().backward(retain_graph=True)
    return shown, x.grad, w.grad, x.requires_grad


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(pytree.tree_leaves(got), pytree.tree_leaves(want))


@pytest.mark.parametrize(
    ("grad", "backend", "name"), sweeps.combinations([False, True], ["eager", "aot_eager"], PROGRAMS)
)
def test_one_graph(name: str, backend: str, grad: bool) -> None:
    compiled = argand.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for _ in range(2):
        same(outcome(compiled, grad), outcome(PROGRAMS[name], grad))


@pytest.mark.parametrize(
    "name", ["jacobian", "in a loss", "hvp", "gradients of a batch", "jacobian of what is constant"]
)
def test_native(name: str) -> None:
    same(outcome(argand.compile(PROGRAMS[name], fullgraph=True), True), outcome(PROGRAMS[name], True))


def test_what_is_linear_in_strict_mode() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return jvp(lambda a: a * 2, x, w, strict=True, create_graph=True)

    same(outcome(argand.compile(program, backend="eager", fullgraph=True), True), outcome(program, True))


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name: str) -> None:
    program = REFUSED[name]
    assert outcome(argand.compile(program, backend="eager"), True) == outcome(program, True)
