"""Transforms of torch.func and forward-mode gradients, nested in each other, of functions of one tensor.

Each transform gives a function of one tensor again. `python -m tests.capture.torch_functions.higher_order.transform_programs
--count 500 --backend aot_eager` compares random ones with eager (`--device cuda`: on a GPU; `--rows`: of other numbers of
rows each time).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import nn
from torch.autograd import functional as derivatives
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
from torch.nn import functional

import argand
from argand import events

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]

_GENERATOR = torch.Generator().manual_seed(1)
W = torch.randn(4, 4, dtype=torch.float64, generator=_GENERATOR)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
LAYERS = nn.ModuleList([nn.LayerNorm(4), nn.Conv1d(1, 2, 3, padding=1)]).double()
ENSEMBLE = [nn.Linear(4, 4).double() for _ in range(3)]
STACKED = {name: p.detach() for name, p in stack_module_state(ENSEMBLE)[0].items()}  # type: ignore[arg-type]
PARAMETERS = {name: p.detach() for name, p in MODEL.named_parameters()}


def to_device(device: str) -> None:
    """What the functions read is there from now on."""
    global W
    W = W.to(device)
    MODEL.to(device)
    LAYERS.to(device)
    PARAMETERS.update({name: p.detach() for name, p in MODEL.named_parameters()})


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
    "data": lambda x: x[..., torch.tensor([0, 2, 1, 1], device=x.device)] * x,
    "gathered": lambda x: x.gather(-1, x.argsort(-1)) * x,
    "matrices": lambda x: (
        torch.linalg.inv(x.reshape(-1, 4).T @ x.reshape(-1, 4) + 2 * torch.eye(4, device=x.device).double()).sum(0) * x
    ),
    "joined": lambda x: torch.cat([x, x * 2], -1)[..., 2:6] * torch.stack([x, x], 0).sum(0),
    "constant": lambda x: torch.ones_like(x),
    "padded": lambda x: functional.pad(x, (1, 1))[..., 1:-1] * functional.gelu(x),
    "ensemble": lambda x: vmap(lambda p: functional_call(ENSEMBLE[0], p, (x,)))(STACKED).tanh().sum(0),
    "steps": lambda x: (x * 2).round() * x.sin() + x.sign(),
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


def _pushed(function: Function, x: Tensor) -> Tensor:
    y, push = linearize(function, x.detach())
    return y + push(x.detach().cos())


def _batch_of_gradients(function: Function, x: Tensor) -> Tensor:
    leaf = x * 1 if x.requires_grad else x.detach().requires_grad_()
    y = function(leaf)
    if not y.requires_grad:
        return y
    seeds = torch.stack([torch.ones_like(y), y.detach().cos()])
    options = {"is_grads_batched": True, "create_graph": True, "materialize_grads": True}
    (gradients,) = torch.autograd.grad(y, leaf, seeds, **options)
    return gradients.sum(0) if gradients.dim() > leaf.dim() else gradients


def _written(function: Function, x: Tensor) -> Tensor:
    batch = torch.stack([x, x * 2])

    def body(a: Tensor) -> Tensor:
        y = function(a)
        a.mul_(3)
        a[..., 0] = 1
        return y

    return vmap(body)(batch).sum(0) + batch[1]


def _in_a_nest(function: Function, x: Tensor) -> Tensor:
    def body(given: Any, scale: float) -> Any:
        return {"y": function(given["a"]) * scale, "b": given["b"][0].sum()}

    batch = {"a": torch.stack([x, x * 2], -1), "b": (torch.stack([x, x]), 3)}
    out = vmap(body, in_dims=({"a": -1, "b": (0, None)}, None), out_dims={"y": -1, "b": 0})(batch, 2.0)
    return out["y"].sum(-1) + out["b"].sum()


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
    "jvp, strict": lambda f: lambda x: sum(jvp(f, (x,), (x.cos(),), strict=True)),
    "jacrev in place": lambda f: lambda x: _summed(jacrev(f, chunk_size=2, _preallocate_and_copy=True)(x), x),
    "linearize": lambda f: lambda x: _pushed(f, x),
    "functionalize": lambda f: lambda x: functionalize(f)(x),
    "functionalize, views": lambda f: lambda x: functionalize(f, remove="mutations_and_views")(x),
    "vmap of a nest": lambda f: lambda x: _in_a_nest(f, x),
    "vmap, written to": lambda f: lambda x: _written(f, x),
    "vmap, random": lambda f: (
        lambda x: vmap(lambda a: f(a) * torch.rand_like(a), randomness="different")(torch.stack([x, x])).sum(0)
    ),
    "vmap, the same random": lambda f: (
        lambda x: vmap(lambda a: f(a) * torch.rand(4).double(), randomness="same")(torch.stack([x, x])).sum(0)
    ),
}

AROUND: dict[str, Callable[[Function], Function]] = {
    "gradients of a batch": lambda f: lambda x: _batch_of_gradients(f, x),
    "jacobian": lambda f: lambda x: _summed(derivatives.jacobian(f, x), x),
    "jacobian by vmap": lambda f: lambda x: _summed(derivatives.jacobian(f, x, True, vectorize=True), x),
    "jacobian in forward mode": lambda f: (
        lambda x: _summed(derivatives.jacobian(f, x, vectorize=True, strategy="forward-mode"), x)
    ),
    "hessian by vmap": lambda f: lambda x: _summed(derivatives.hessian(lambda a: f(a).sum(), x, vectorize=True), x),
    "hessian in forward mode": lambda f: (
        lambda x: _summed(
            derivatives.hessian(lambda a: f(a).sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"), x
        )
    ),
    "hvp": lambda f: lambda x: derivatives.hvp(lambda a: f(a).sum(), x, x.detach().cos(), create_graph=True)[1],
}
"""What works on autograd's tape, which transforms within transforms do not have: outermost alone."""


def program(seed: int) -> tuple[str, Function]:
    """A name, and a function of four numbers, or of rows of four."""
    rng = random.Random(seed)
    name = rng.choice(list(FUNCTIONS))
    function = FUNCTIONS[name]
    for _ in range(rng.choice((1, 2, 2, 3))):
        transform = rng.choice(list(TRANSFORMS))
        name, function = f"{transform} of {name}", TRANSFORMS[transform](function)
    if rng.random() < 0.25:
        transform = rng.choice(list(AROUND))
        name, function = f"{transform} of {name}", AROUND[transform](function)
    return name, function


def outcome(function: Function, seed: int, *rows: int) -> Any:
    """The result, and its gradient in half of the programs, zeros where it has none; or the error."""
    x = torch.randn(*rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(W.device)
    x.requires_grad_(seed % 2 == 0)
    torch.manual_seed(seed)
    try:
        y = function(x)
        if y.requires_grad:
            y.square().sum().backward()
    except Exception as error:
        return error
    return y.detach(), torch.zeros_like(x) if x.grad is None else x.grad


OF_TORCH = (
    "modified by an inplace operation",
    "forward gradient that has a different size",
    "is not possible because there exists a Tensor",
)
"""What eager says of its own formulas for tangents of softmax and logsumexp, of which gradients are asked for, of
views that functionalize made copies of, and of what forward mode writes under vmap."""


ROWS = ((3,), (5,), (2,), (6,))
KNOWN_BREAKS = (
    "random numbers",
    "Gradients may be recorded",
    "strict=True",
    "nested with other transforms",
    "A level is entered",
)
"""Functions that captured code would call more often than eager does; linearize where gradients are recorded, where
nothing depends on the tangents, and within other transforms; levels of forward mode within functionalize."""


def difference(seed: int, backend: Any, sizes: Sequence[tuple[int, ...]] = ((), ())) -> str:
    """How argand differs from eager in calls of these numbers of rows; "" where it does not."""
    name, function = program(seed)
    breaks: list[Any] = []
    compiled = argand.compile(function, backend=backend)
    stop = events.bus.subscribe(lambda event: breaks.append(event.data["reason"]), ("graph_breaks",))
    try:
        for rows in sizes:
            eager, got = outcome(function, seed, *rows), outcome(compiled, seed, *rows)
            if any(text in str(eager) for text in OF_TORCH):
                continue
            if isinstance(eager, Exception) or isinstance(got, Exception):
                if type(eager) is not type(got):
                    return f"{seed}: {name}: {eager} in eager, {got}"
                continue
            torch.testing.assert_close(got, eager, rtol=1e-7, atol=1e-8, equal_nan=True)
            if breaks and not any(text in breaks[0].explanation for text in KNOWN_BREAKS):
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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", action="store_true", help="each call has another number of rows")
    given = parser.parse_args()
    argand.config.fallback_random = True  # eager's random numbers, on every backend
    to_device(given.device)
    argand.config.fallback_random = True  # else numbers that kernels draw are others
    differences = 0
    for seed in range(given.first, given.first + given.count):
        argand.reset()
        text = difference(seed, given.backend, ROWS) if given.rows else difference(seed, given.backend)
        if text:
            differences += 1
            print(text, flush=True)
    print(f"{given.count} programs, {differences} differences")


if __name__ == "__main__":
    main()
