"""Transforms of torch.func and forward-mode gradients, nested in each other, of functions of one tensor.

Each transform gives a function of one tensor again. `python -m tests.capture.torch_functions.higher_order.transform_programs
--count 500 --backend aot_eager` compares random ones with eager.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional

import argand
from argand import events

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]

_GENERATOR = torch.Generator().manual_seed(1)
W = torch.randn(4, 4, dtype=torch.float64, generator=_GENERATOR)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
LAYERS = nn.ModuleList([nn.LayerNorm(4), nn.Conv1d(1, 2, 3, padding=1)]).double()
PARAMETERS = {name: p.detach() for name, p in MODEL.named_parameters()}


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2)
    y[..., 0] = y[..., 1] * 3
    y += x
    return y


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        double = x * 2
    return double * x


FUNCTIONS: dict[str, Function] = {
    "sin": lambda x: x.sin() * x,
    "product": lambda x: (x @ W).tanh(),
    "softmax": lambda x: (x * 2).softmax(-1) * x,
    "running": lambda x: x.cumsum(-1).cumprod(-1),
    "choice": lambda x: torch.where(x > 0, x * x, x.exp()),
    "written": written,
    "without gradients": without_gradients,
    "detached": lambda x: x.detach() * x,
    "model": lambda x: MODEL(x),
    "functional call": lambda x: functional_call(MODEL, PARAMETERS, (x,)),
    "convolution": lambda x: LAYERS[1](x.reshape(-1, 1, 4)).sum(1).reshape(x.shape),
    "largest": lambda x: x.max(-1, keepdim=True)[0] * x + x.amin(-1, keepdim=True),
    "sorted": lambda x: x.sort(-1)[0] * x,
    "data": lambda x: x[..., torch.tensor([0, 2, 1, 1])] * x,
    "gathered": lambda x: x.gather(-1, x.argsort(-1)) * x,
    "matrices": lambda x: torch.linalg.inv(x.reshape(-1, 4).T @ x.reshape(-1, 4) + 2 * torch.eye(4).double()).sum(0) * x,
    "joined": lambda x: torch.cat([x, x * 2], -1)[..., 2:6] * torch.stack([x, x], 0).sum(0),
    "constant": lambda x: torch.ones_like(x),
    "padded": lambda x: functional.pad(x, (1, 1))[..., 1:-1] * functional.gelu(x),
    "einsum": lambda x: torch.einsum("...i,ij->...j", x, W) * x.logsumexp(-1, keepdim=True),
}  # fmt: skip


def _dual(function: Function, x: Tensor) -> Tensor:
    with fwd.dual_level():
        parts = fwd.unpack_dual(function(fwd.make_dual(x, x.cos())))
    return parts.primal if parts.tangent is None else parts.primal + parts.tangent


def _pulled(function: Function, x: Tensor) -> Tensor:
    y, pull = vjp(function, x)
    return pull(y.cos())[0]


def _with_value(function: Function, x: Tensor) -> Tensor:
    def total(a: Tensor) -> Any:
        y = function(a)
        return y.sum(), y

    gradient, (value, y) = grad_and_value(total, has_aux=True)(x)
    return gradient * value + y


def _summed(jacobian: Tensor, x: Tensor) -> Tensor:
    return jacobian.sum(tuple(range(x.dim())))


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: lambda x: grad(lambda a: f(a).sum())(x),
    "grad_and_value": lambda f: lambda x: _with_value(f, x),
    "vjp": lambda f: lambda x: _pulled(f, x),
    "jvp": lambda f: lambda x: sum(jvp(f, (x,), (x.cos(),))),
    "jacfwd": lambda f: lambda x: _summed(jacfwd(f)(x), x),
    "jacrev": lambda f: lambda x: _summed(jacrev(f, chunk_size=3)(x), x),
    "hessian": lambda f: lambda x: _summed(hessian(lambda a: f(a).sum())(x), x),
    "vmap": lambda f: lambda x: vmap(f)(torch.stack([x, x * 2])).sum(0),
    "vmap, other dims": lambda f: lambda x: vmap(f, in_dims=-1, out_dims=-1)(torch.stack([x, x * 2], -1)).sum(-1),
    "vmap in chunks": lambda f: (
        lambda x: vmap(lambda a, b: f(a) * b, in_dims=(0, None), chunk_size=2)(torch.stack([x, x * 2, x * 3]), x).sum(0)
    ),
    "dual": lambda f: lambda x: _dual(f, x),
}


def program(seed: int) -> tuple[str, Function]:
    """A name, and a function of four numbers."""
    rng = random.Random(seed)
    name = rng.choice(list(FUNCTIONS))
    function = FUNCTIONS[name]
    for _ in range(rng.choice((1, 2, 2, 3))):
        transform = rng.choice(list(TRANSFORMS))
        name, function = f"{transform} of {name}", TRANSFORMS[transform](function)
    return name, function


def outcome(function: Function, seed: int) -> Any:
    """The result, and its gradient in half of the programs, zeros where it has none; or the error."""
    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_(seed % 2 == 0)
    try:
        y = function(x)
        if y.requires_grad:
            y.square().sum().backward()
    except Exception as error:
        return error
    return y.detach(), torch.zeros_like(x) if x.grad is None else x.grad


OF_TORCH = "modified by an inplace operation"
"""What eager says of its own formulas for tangents of softmax and logsumexp, of which gradients are asked for."""


def difference(seed: int, backend: Any) -> str:
    """How argand differs from eager; "" where it does not."""
    name, function = program(seed)
    breaks: list[Any] = []
    compiled = argand.compile(function, backend=backend)
    stop = events.bus.subscribe(lambda event: breaks.append(event.data["reason"]), ("graph_breaks",))
    try:
        for _ in range(2):
            eager, got = outcome(function, seed), outcome(compiled, seed)
            if OF_TORCH in str(eager):
                continue
            if isinstance(eager, Exception) or isinstance(got, Exception):
                if type(eager) is not type(got):
                    return f"{seed}: {name}: {eager} in eager, {got}"
                continue
            torch.testing.assert_close(got, eager, rtol=1e-7, atol=1e-8, equal_nan=True)
            if breaks:
                return f"{seed}: {name}: {breaks[0].explanation}"
    except AssertionError as error:
        return f"{seed}: {name}: {error}"
    finally:
        stop()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    given = parser.parse_args()
    differences = 0
    for seed in range(given.first, given.first + given.count):
        argand.reset()
        text = difference(seed, given.backend)
        if text:
            differences += 1
            print(text, flush=True)
    print(f"{given.count} programs, {differences} differences")


if __name__ == "__main__":
    main()
