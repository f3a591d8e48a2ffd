"""Forward-mode derivatives on backends that trace: one graph, compiled, with eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import argand
from argand import events

torch.manual_seed(0)
WEIGHT = torch.randn(4, 4)
MODEL = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
PARAMS = {name: p.detach() for name, p in MODEL.named_parameters()}


def f(x: torch.Tensor) -> torch.Tensor:
    return (x @ WEIGHT).sin() * x


def of_model(params: Any, x: torch.Tensor) -> torch.Tensor:
    return functional_call(MODEL, params, (x,))


def laplacian(x: torch.Tensor) -> torch.Tensor:
    return vmap(lambda row: torch.trace(hessian(lambda a: of_model(PARAMS, a)[0])(row)))(x)


X, T = torch.randn(3, 4), torch.randn(3, 4)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jvp": (lambda x, t: jvp(f, (x,), (t,)), (X, T)),
    "jvp of two": (lambda x, t: jvp(lambda a, b: (a * b, {"sum": (a + b).sum()}), (x, t), (t, x)), (X, T)),
    "jvp with aux": (lambda x, t: jvp(lambda a: (f(a), a * 2), (x,), (t,), has_aux=True), (X, T)),
    "jvp by parameters": (lambda x: jvp(lambda p: of_model(p, x), (PARAMS,), (PARAMS,)), (X,)),
    "hvp": (lambda x, t: jvp(grad(lambda a: f(a).sum()), (x,), (t,)), (X, T)),
    "jvp of jvp": (lambda x, t: jvp(lambda a: jvp(f, (a,), (t,))[1], (x,), (t,)), (X, T)),
    "jacfwd": (lambda x: jacfwd(f)(x), (X,)),
    "jacfwd of several": (lambda x, t: jacfwd(lambda a, b: (a * b, b.sum(0)), argnums=(0, 1))(x, t), (X, T)),
    "jacfwd with aux": (lambda x: jacfwd(lambda a: (f(a), a * 2), has_aux=True)(x), (X,)),
    "hessian": (lambda x: hessian(lambda a: f(a[None]).sum())(x), (X[0],)),
    "hessian by parameters": (lambda x: hessian(lambda p: of_model(p, x).square().sum())(PARAMS), (X[:1],)),
    "hessian by hand": (lambda x: jacrev(jacfwd(lambda a: f(a[None]).sum()))(x), (X[0],)),
    "vmap of jvp": (lambda x: vmap(lambda a: jvp(lambda b: b.sin() @ WEIGHT, (a,), (a,))[1])(x), (X,)),
    "laplacian": (laplacian, (X,)),
    "what is constant": (lambda x, t: jvp(lambda a: (a.detach() * a, a.detach() * 2), (x,), (t,)), (X, T)),
    "where it is not smooth": (lambda x, t: jvp(lambda a: a.round().clamp(0, 1).relu().max(1)[0], (x,), (t,)), (X, T)),
}


@pytest.fixture
def fallbacks() -> Any:
    argand.reset()
    found: list[Any] = []
    stop = events.bus.subscribe(lambda e: found.append(e.data["reason"]) if e.name == "fallback" else None)
    yield found
    stop()


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, fallbacks: list[Any]) -> None:
    function, given = PROGRAMS[name]
    compiled = argand.compile(function, backend="aot_eager", fullgraph=True)
    for scale in (1.0, 0.5):
        args = tuple(arg * scale for arg in given)
        torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-4, atol=1e-5)
    assert fallbacks == []


def test_compiled(fallbacks: list[Any]) -> None:
    for name in ("jvp", "laplacian"):
        function, given = PROGRAMS[name]
        got = argand.compile(function, fullgraph=True)(*given)
        torch.testing.assert_close(got, function(*given), rtol=1e-4, atol=1e-5)
    assert fallbacks == []


def test_gradients_of_forward_mode(fallbacks: list[Any]) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return jvp(lambda a: (a @ w).tanh(), (x,), (x * 2,))[1].square().sum()

    grads = []
    for run in (loss, argand.compile(loss, backend="aot_eager", fullgraph=True)):
        x, w = X.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
        run(x, w).backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
    assert fallbacks == []


def test_forward_mode_does_not_look_at_the_grad_mode() -> None:
    def without(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            squared = a * a
        return squared * a

    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        return jvp(without, (x,), (t,))

    torch.testing.assert_close(argand.compile(function, backend="aot_eager")(X, T), function(X, T))


def test_what_cannot_be_mapped_raises() -> None:
    def random_column(x: torch.Tensor) -> torch.Tensor:
        return jacfwd(lambda a: a * torch.rand_like(a))(x)

    for run in (random_column, argand.compile(random_column, backend="aot_eager")):
        with pytest.raises(RuntimeError, match="random"):
            run(X[0])


ONES = torch.ones(3)

AT_TIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fmax": lambda x: torch.fmax(x, ONES),
    "fmin": lambda x: x.fmin(ONES),
    "clamp": lambda x: x.clamp(ONES, ONES * 2),
    "clamp_": lambda x: (x * 1).clamp_(min=ONES),
    "std": lambda x: (x * 0 + 1).std(),
    "norm": lambda x: torch.linalg.vector_norm(x - x.detach(), 3),
    "pow": lambda x: x.pow(torch.tensor([2.0, 0.0, 1.0])),
    "atan2": lambda x: torch.atan2(x, x * 0),
    "det": lambda x: torch.linalg.det(x[1:2, None]),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "xlog1py": lambda x: torch.special.xlog1py(x, -ONES),
    "maximum": lambda x: torch.maximum(x, ONES),
    "clamp to numbers": lambda x: x.clamp(0, 1),
    "amax": lambda x: x.amax(),
}


@pytest.mark.parametrize("name", AT_TIES)
def test_derivatives_are_eagers(name: str) -> None:
    def pushed(x: torch.Tensor) -> object:
        return torch.func.jvp(AT_TIES[name], (x,), (x + 1,)), torch.func.jacfwd(AT_TIES[name])(x)

    x = torch.tensor([1.0, 0.0, 1.0])
    assert_same(pushed(x), argand.compile(pushed, backend="aot_eager")(x))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_in_modes_without_gradients(mode: Callable[[], object]) -> None:
    """In inference mode torch's own code of these gives zeros."""

    def pushed(x: torch.Tensor) -> object:
        with mode():
            jacobian = torch.autograd.functional.jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")
            return jacobian, torch.func.linearize(torch.sin, x)[1](x)

    assert_same(pushed(ONES), argand.compile(pushed, backend="eager")(ONES))
