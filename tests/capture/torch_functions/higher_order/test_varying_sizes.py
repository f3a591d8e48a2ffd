"""Sizes that vary in functions given to torch's functions: one graph for all of them, as where nothing is around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import argand
from argand.capture.driver.explain import Findings
from helpers import assert_same

Tensor = torch.Tensor

LAYERS = [nn.Linear(4, 3) for _ in range(2)]
STACKED = stack_module_state(LAYERS)  # type: ignore[arg-type]
PARAMETERS = {name: value.detach() for name, value in LAYERS[0].named_parameters()}


class Scaled(torch.autograd.Function):
    """Its backward reads a size and a number that vary."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: int) -> Tensor:  # type: ignore[override]
        return x * x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.factor, ctx.length = inputs[1], inputs[0].shape[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return 2 * grad * ctx.saved_tensors[0] * ctx.factor + ctx.length, None


def pulled(x: Tensor) -> Any:
    value, pull = vjp(lambda y: y.sin() * len(y), x)
    return value, pull(value.cos())


def pushed(x: Tensor) -> Any:
    value, push = linearize(torch.sin, x.detach())
    return value, push(value.cos())


def written(x: Tensor) -> Tensor:
    y = x.clone()
    vmap(lambda row: row.mul_(len(x)))(y)
    return y


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * gradient.shape[0])
    return y.sin()


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "vmap": lambda x: vmap(lambda row: row.sin().sum())(x),
    "vmap of what is around": lambda x: vmap(lambda row: (row @ (x * 2).T).softmax(-1) @ x / len(x))(x),
    "vmap of sizes": lambda x: vmap(lambda row, n: row * torch.arange(row.shape[0]) / n, (1, None), 1)(x, len(x)),
    "vmap in chunks": lambda x: vmap(torch.sin, chunk_size=2)(x),
    "vmap in vmap": lambda x: vmap(lambda a: vmap(lambda b: (a * b).sum())(x))(x),
    "vmap of layers": lambda x: vmap(lambda p, y: functional_call(LAYERS[0], p, (y,)), (0, None))(STACKED[0], x),
    "vmap, written to": written,
    "grad": lambda x: grad(lambda y: (y**2).sum() / len(y))(x),
    "grad_and_value": lambda x: grad_and_value(lambda a, b: ((a - b) ** 2).mean(), (0, 1))(x, x.cos()),
    "gradients of samples": lambda x: vmap(
        grad(lambda p, y: functional_call(LAYERS[0], p, (y[None],)).sin().sum()), (None, 0)
    )(PARAMETERS, x),
    "vjp": pulled,
    "jvp": lambda x: jvp(lambda y: y.sin() * len(y), (x,), (x.cos(),)),
    "linearize": pushed,
    "jacrev": lambda x: jacrev(lambda y: y.sin() * y.sum())(x),
    "jacfwd": lambda x: jacfwd(lambda y: y.T.sin() * y.sum())(x),
    "hessian": lambda x: hessian(lambda y: (y.sin() * y).sum())(x[:, 0]),
    "functionalize": lambda x: functionalize(lambda y: y.clone().add_(len(y)))(x),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin() * len(y), lambda y: y.cos() + x, (x,)),
    "while_loop": lambda x: torch.while_loop(
        lambda i, y: i < y.shape[0], lambda i, y: (i + 1, y * 2 + len(x)), (torch.tensor(0), x.detach())
    ),
    "Function": lambda x: Scaled.apply(x, len(x)) + 1,
    "Function in vmap": lambda x: vmap(lambda row: Scaled.apply(row, len(x)))(x),
    "Function in grad": lambda x: grad(lambda y: Scaled.apply(y, len(x)).sum())(x),
    "hook": hooked,
}  # fmt: skip


def outcome(program: Callable[[Tensor], Any], rows: int, gradients: bool) -> Any:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).requires_grad_(gradients)
    results = program(x)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if leaf.requires_grad]
    if leaves:
        torch.autograd.backward([leaf.sin().sum() for leaf in leaves])
    return results, x.grad


def check(program: Callable[[Tensor], Any], backend: str, gradients: bool) -> None:
    findings, compiled = Findings(), argand.compile(program, backend=backend)
    with findings.listening():
        for rows in (5, 3, 9, 2):
            assert_same(outcome(program, rows, gradients), outcome(compiled, rows, gradients))
    assert len(findings.graphs) == 2 and not findings.breaks


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name: str) -> None:
    gradients = name in ("Function", "Function in vmap", "hook", "vmap", "grad", "vjp")
    check(PROGRAMS[name], "eager", gradients)


@pytest.mark.parametrize(("backend", "step"), [("aot_eager", 1), ("native", 3)])
def test_backends(backend: str, step: int) -> None:
    left_out = ("vmap in chunks", "cond", "while_loop", "hook")
    chosen = [program for name, program in PROGRAMS.items() if name not in left_out]
    check(lambda x: [program(x) for program in chosen[::step]], backend, False)
