"""`torch.autograd.forward_ad` in captured code: one graph, with eager's values, tangents and gradients, and where that
cannot be, eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import argand
from helpers import CountingBackend

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Any]
LAYER = nn.Linear(4, 2).double()


def of_itself(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        parts = fwd.unpack_dual(dual)
        return parts.tangent is t, parts.primal, dual * 2


def of_two(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        first, second = fwd.make_dual(x, t), fwd.make_dual(t, x.cos())
        a = first * second
        return [fwd.unpack_dual(y) for y in (a, a.sum(0) + second, x * 3, first.detach(), second.argmax(0))], a.sum()


def levels_in_a_loop(x: Tensor, t: Tensor) -> Any:
    tangents = []
    for i in range(3):
        with fwd.dual_level():
            tangents.append(fwd.unpack_dual(fwd.make_dual(x + i, t).sin()).tangent)
    return tangents


def written(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        out = torch.zeros(3, 4, dtype=x.dtype)
        out[0] = dual[0] * 2
        out[1] = 5
        y = dual.clone()
        y.mul_(dual)
        return fwd.unpack_dual(out), fwd.unpack_dual(y)


def other_tensor_written(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        scale = torch.zeros(4, dtype=x.dtype)
        a = dual * (scale + 1)
        scale.add_(1)
        return fwd.unpack_dual(a + dual.sin() * (scale * 2)), scale


def of_parameters(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        duals = {name: fwd.make_dual(p, torch.ones_like(p)) for name, p in LAYER.named_parameters()}
        return fwd.unpack_dual(torch.func.functional_call(LAYER, duals, (x,)))


def used_after_its_level(x: Tensor, t: Tensor) -> Any:
    fwd.enter_dual_level()
    dual = fwd.make_dual(x, t).sin()
    fwd.exit_dual_level()
    return dual * 2, fwd.unpack_dual(dual).tangent


def with_gradients_off(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        with torch.no_grad():
            square = dual * dual
            first = fwd.unpack_dual(square * 2)
        return first, fwd.unpack_dual(square * dual)


def of_complex_numbers(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(torch.complex(x, t), torch.complex(t, x))
        return fwd.unpack_dual((dual * dual.conj()).real), fwd.unpack_dual(dual.abs())


def of_a_gradient(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        return fwd.unpack_dual(torch.func.grad(lambda a: (a.sin() * a).sum())(fwd.make_dual(x, t)))


def in_a_gradient(x: Tensor, t: Tensor) -> Any:
    def loss(a: Tensor) -> Tensor:
        with fwd.dual_level():
            tangent = fwd.unpack_dual(fwd.make_dual(a, t).exp()).tangent
        return tangent.square().sum()

    return torch.func.grad(loss)(x)


CAPTURED: list[Program] = [
    of_itself, of_two, levels_in_a_loop, written, other_tensor_written, of_parameters, used_after_its_level,
    with_gradients_off, of_complex_numbers, of_a_gradient, in_a_gradient,
]  # fmt: skip


def dual_written(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x * 1, t * 1)
        dual.mul_(2)
        return fwd.unpack_dual(dual)


def primal_written(x: Tensor, t: Tensor) -> Any:
    x = x.clone()
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        x[0] = 7
        return fwd.unpack_dual(dual * 2)


def surroundings_written(x: Tensor, t: Tensor) -> Any:
    scale = torch.zeros(4, dtype=x.dtype)
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        a = dual * scale.clone()
        scale.add_(1)
        return fwd.unpack_dual(a + dual * scale), scale


def random(x: Tensor, t: Tensor) -> Any:
    torch.manual_seed(1)
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        return fwd.unpack_dual(functional.dropout(dual) * dual)


def break_in_a_level(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t).sin()
        argand.graph_break()
        return fwd.unpack_dual(dual * 2)


def asked_for_data(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, t)
        return fwd.unpack_dual(dual * (2 if dual.sum() > 0 else 3))


def tangent_that_is_a_view(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        return fwd.unpack_dual(fwd.make_dual(x, t).view(-1)), x


def levels_in_levels(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level(), fwd.dual_level():
        return x * 2


def level_in_a_jvp(x: Tensor, t: Tensor) -> Any:
    def tangent(a: Tensor) -> Tensor:
        with fwd.dual_level():
            return fwd.unpack_dual(fwd.make_dual(a, t).exp()).tangent

    return torch.func.jvp(tangent, (x,), (t,))


def jvp_in_a_level(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        return torch.func.jvp(torch.sin, (fwd.make_dual(x, t),), (t,))


def no_level(x: Tensor, t: Tensor) -> Any:
    return fwd.make_dual(x, t)


def tangent_of_another_size(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        return fwd.make_dual(x, t[0])


def no_formula(x: Tensor, t: Tensor) -> Any:
    with fwd.dual_level():
        given = [fwd.make_dual(x, t).view(1, 1, 3, 4)] * 3
        return functional.scaled_dot_product_attention(*given)


ELSEWHERE: list[Program] = [
    dual_written, primal_written, surroundings_written, random, break_in_a_level, asked_for_data,
    tangent_that_is_a_view, levels_in_levels, level_in_a_jvp, jvp_in_a_level, no_level, tangent_of_another_size,
    no_formula,
]  # fmt: skip


def outcome(program: Program, grad: bool, flags: bool) -> Any:
    generator = torch.Generator().manual_seed(3)
    x, t = (torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_(grad) for _ in range(2))
    try:
        results = pytree.tree_leaves(program(x, t))
    except Exception as error:
        return type(error), str(error)
    told = [(y.detach(), flags and y.requires_grad) if isinstance(y, Tensor) else y for y in results]
    differentiable = [y for y in results if isinstance(y, Tensor) and y.requires_grad]
    if grad and differentiable:
        torch.stack([y.abs().square().sum() for y in differentiable]).sum().backward()
    return told, x.grad, t.grad


@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_one_graph(program: Program, grad: bool) -> None:
    backend = CountingBackend()
    for compiled in (
        argand.compile(program, backend=backend, fullgraph=True),
        argand.compile(program, backend="aot_eager", fullgraph=True),
    ):
        for _ in range(2):
            eager = outcome(program, grad, flags=False)
            torch.testing.assert_close(outcome(compiled, grad, flags=False), eager, rtol=1e-10, atol=1e-10)
    with_flags = argand.compile(program, backend="eager")
    assert str(outcome(with_flags, grad, flags=True)) == str(outcome(program, grad, flags=True))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("program", ELSEWHERE, ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    compiled = argand.compile(program, backend="eager")
    for _ in range(2):
        got, eager = outcome(compiled, False, flags=True), outcome(program, False, flags=True)
        assert str(got) == str(eager)


def test_compiled() -> None:
    for program in (of_two, written):
        got, eager = outcome(argand.compile(program, fullgraph=True), True, False), outcome(program, True, False)
        torch.testing.assert_close(got, eager, rtol=1e-9, atol=1e-10)
