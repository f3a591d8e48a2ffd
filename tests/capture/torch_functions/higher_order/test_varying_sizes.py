"""Sizes that vary in functions given to torch's functions: one graph for all of them, as where nothing is around."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torchs_map
from torch._higher_order_ops.scan import scan as torchs_scan
from torch.autograd import functional
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
from torch.nn.attention.flex_attention import flex_attention

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


def attended(x: Tensor) -> Tensor:
    heads = x.detach().view(1, 2, len(x), 2)
    window = 1 + len(x) // 2

    def near(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where((i - j).abs() < window, score * x.detach()[i, head], -1e9)

    return flex_attention(heads, heads * 2, heads, near)


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
    "flex_attention": attended,
    "functional.jacobian": lambda x: functional.jacobian(lambda y: y.sin() * y.sum(0), x),
    "functional.jacobian, vectorized": lambda x: functional.jacobian(
        lambda y, z: (y.sum(1), z * 2), (x, x.cos()), create_graph=True, vectorize=True
    ),
    "functional.hessian": lambda x: functional.hessian(lambda y: (y.sin() * y).sum(), x[:, 0]),
    "functional.hessian of zeros": lambda x: functional.hessian(lambda y: y.sum(), x[:, 0]),
}  # fmt: skip


def summed(x: Tensor, scan: Any) -> Any:
    """What is carried needs gradients after a step, not before."""

    def step(carry: Any, row: Any) -> Any:
        total, last = carry
        return (total + last * len(x), row["a"].sin()), (total * row["b"], last.clone())

    return scan(step, (torch.zeros(4), x[0] * 2), {"a": x, "b": x.cos()}, reverse=True)


MAPS: dict[str, Callable[[Tensor, Any], Any]] = {
    "map": lambda x, apply: apply(lambda row, other: (row.sin() * len(other), row.sum()), x, x.cos()),
    "map in columns": lambda x, apply: apply(lambda row: row @ row, x.T[:, :, None].expand(4, len(x), len(x))),
}
SCANS: dict[str, Callable[[Tensor, Any], Any]] = {
    "scan": summed,
    "scan of columns": lambda x, scan: scan(lambda carry, row: (carry + row, row * 2), x[:, 0] * 2, x, dim=1),
    "scan of matrices": lambda x, scan: scan(
        lambda carry, row: (carry * row.sum(0), row.diag()), x[0, :2] * 2, x.view(-1, 2, 2)
    ),
}
STEPS: dict[str, Callable[[Tensor], Any]] = {
    **{name: functools.partial(program, apply=torchs_map) for name, program in MAPS.items()},
    **{name: functools.partial(program, scan=torchs_scan) for name, program in SCANS.items()},
}


def mapped(function: Any, rows: Tensor, *others: Any) -> Any:
    """What torch's map gives, which in eager calls torch.compile."""
    results = [function(row, *others) for row in rows]
    stacked = [torch.stack(each) for each in zip(*[r if isinstance(r, tuple) else (r,) for r in results])]
    return tuple(stacked) if isinstance(results[0], tuple) else stacked[0]


def scanned(step: Any, carry: Any, rows: Any, dim: int = 0, reverse: bool = False) -> Any:
    """What torch's scan gives, likewise."""
    leaves, spec = torch.utils._pytree.tree_flatten(rows)
    results = []
    for place in range(leaves[0].shape[dim]):
        place = leaves[0].shape[dim] - 1 - place if reverse else place
        row = torch.utils._pytree.tree_unflatten([leaf.select(dim, place) for leaf in leaves], spec)
        carry, result = step(carry, row)
        results.append(result if isinstance(result, tuple) else (result,))
    stacked = [torch.stack(each[::-1] if reverse else each).movedim(0, dim) for each in zip(*results)]
    return carry, tuple(stacked) if isinstance(result, tuple) else stacked[0]


BY_HAND: dict[str, Callable[[Tensor], Any]] = {
    **PROGRAMS,
    **{name: functools.partial(program, apply=mapped) for name, program in MAPS.items()},
    **{name: functools.partial(program, scan=scanned) for name, program in SCANS.items()},
}


def outcome(program: Callable[[Tensor], Any], rows: int, gradients: bool) -> Any:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).requires_grad_(gradients)
    results = program(x)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if leaf.requires_grad]
    if leaves:
        torch.autograd.backward([leaf.sin().sum() for leaf in leaves])
    return results, x.grad


def check(names: Sequence[str], backend: str, gradients: bool) -> None:
    findings = Findings()
    compiled = argand.compile(lambda x: [{**PROGRAMS, **STEPS}[name](x) for name in names], backend=backend)
    with findings.listening():
        for rows in (5, 3, 9, 2):
            want = outcome(lambda x: [BY_HAND[name](x) for name in names], rows, gradients)
            assert_same(want, outcome(compiled, rows, gradients))
    assert len(findings.graphs) == 2 and not findings.breaks


@pytest.mark.parametrize("name", [*PROGRAMS, *STEPS])
def test_one_graph_for_all_sizes(name: str) -> None:
    gradients = name in ("Function", "Function in vmap", "hook", "vmap", "grad", "vjp", *STEPS)
    check([name], "eager", gradients)


@pytest.mark.parametrize(("backend", "step"), [("aot_eager", 1), ("native", 3)])
def test_backends(backend: str, step: int) -> None:
    left_out = ("vmap in chunks", "cond", "while_loop", "hook")
    check([name for name in PROGRAMS if name not in left_out][::step], backend, False)


def test_steps_run_eagerly_where_their_number_varies() -> None:
    check(list(STEPS), "native", True)


def test_many_steps_are_one_node() -> None:
    x = torch.randn(300, 4)
    compiled = argand.compile(STEPS["scan"], backend="eager", fullgraph=True)
    assert_same(BY_HAND["scan"](x), compiled(x))
