"""`torch.autograd.Function` in functions that torch.func transforms: one graph where eager's rules say what happens, and
never another result than by these rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

import argand
from helpers import CountingBackend

Tensor = torch.Tensor


class Rounded(torch.autograd.Function):
    """Whose derivatives are not those of what it computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Any:
        return (x * scale).round(), x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.save_for_forward(inputs[1], output[1])
        ctx.factor = 3.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, other: Tensor) -> Any:
        scale, double = ctx.saved_tensors
        return gradient * scale * ctx.factor + other * 2, (gradient * double).sum()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, other: Tensor) -> Any:
        scale, double = ctx.saved_tensors
        return tangent * scale * 5.0, tangent * 2


class WithRule(Rounded):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, scale: Tensor) -> Any:
        return (x * 7, x * 2), (in_dims[0], in_dims[0])


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Any:
        return x.round(), x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, other: Tensor) -> Any:
        return gradient, None


SCALE = torch.tensor(1.5)


def of(function: Any) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        rounded, double = function.apply(x, SCALE)
        return (rounded * double + x).sum()

    return call


def dual(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with fwd.dual_level():
        return fwd.unpack_dual(function(fwd.make_dual(x, x.cos()))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x)[1](torch.tensor(2.0)),
    "vmap": lambda f, x: vmap(f)(x),
    "per sample": lambda f, x: vmap(grad(f))(x),
    "gradient of a batch": lambda f, x: grad(lambda a: vmap(f)(a).sum())(x),
    "jacrev": lambda f, x: jacrev(lambda a: f(a) * a[0])(x),
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),)),
    "dual": dual,
    "hessian": lambda f, x: hessian(f)(x),
}
IN_ONE_GRAPH = ("grad", "vjp", "vmap", "per sample", "gradient of a batch", "jacrev")


def outcome(run: Callable[..., Any], x: Tensor) -> Any:
    try:
        return run(x)
    except (RuntimeError, NotImplementedError) as error:
        return str(error)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("function", [Rounded, WithRule, WithContext], ids=lambda function: function.__name__)
def test_as_eager(function: Any, name: str) -> None:
    transform = TRANSFORMS[name]

    def program(x: Tensor) -> Any:
        return transform(of(function), x)

    for backend in ("eager", "aot_eager"):
        compiled = argand.compile(program, backend=backend)
        for seed in (1, 2):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            got, eager = outcome(compiled, x), outcome(program, x)
            assert isinstance(got, str) == isinstance(eager, str), (got, eager)
            assert got == eager if isinstance(got, str) else torch.testing.assert_close(got, eager) is None


@pytest.mark.parametrize("name", IN_ONE_GRAPH)
def test_one_graph(name: str) -> None:
    backend = CountingBackend()
    compiled = argand.compile(lambda x: TRANSFORMS[name](of(Rounded), x), backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(3, 4))
    assert len(backend.graphs) == 1


def test_compiled() -> None:
    def program(x: Tensor) -> Tensor:
        return vmap(grad(of(Rounded)))(x)

    x = torch.randn(3, 4)
    torch.testing.assert_close(argand.compile(program, fullgraph=True)(x), program(x))


def test_a_function_with_a_jvp_is_trained() -> None:
    gradients = []
    for run in (of(Rounded), argand.compile(of(Rounded), backend="aot_eager", fullgraph=True)):
        x = torch.linspace(-2, 2, 4, requires_grad=True)
        run(x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
