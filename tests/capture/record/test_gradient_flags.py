"""`requires_grad_` of tensors from outside: attacks, gradient penalties and frozen modules are one graph, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import argand
import sweeps
from argand.capture.driver.explain import Findings
from helpers import assert_same

T = torch.Tensor
Program = Callable[[T, T, nn.Module], Any]


def left_on(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    return x.requires_grad, x.is_leaf, x.grad_fn, w * 2


def returned(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    return x, x.detach() * 2


def attributed(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    (g,) = torch.autograd.grad((x * x * w).sum(), x)
    x.requires_grad_(False)
    return g * 2, x * 3, x.requires_grad


def on_again(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    loss = (x * x * w).sum()
    x.requires_grad_(False)
    x.requires_grad_(True)
    (g,) = torch.autograd.grad(loss, x)
    x.requires_grad = False
    return g


def attacked(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    (net(x) * w).sum().backward()
    assert x.grad is not None
    sign = x.grad.sign()
    x.grad = None
    x.requires_grad_(False)
    return x + 0.1 * sign


def gradient_kept(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    (x * x * w).sum().backward()
    assert x.grad is not None
    return x.grad * 2


def penalised(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    (g,) = torch.autograd.grad(net(x).tanh().sum(), x, create_graph=True)
    (g.norm(dim=1) - 1).pow(2).mean().backward()
    x.requires_grad_(False)
    x.grad = None


def frozen_for_a_while(x: T, w: T, net: nn.Module) -> Any:
    net.requires_grad_(False)
    first = (net(x) * w).sum()
    net.requires_grad_(True)
    return first, net(x).sum()


def frozen_layer_by_layer(x: T, w: T, net: nn.Module) -> Any:
    for layer in net.children():
        layer.requires_grad_(False)
        x = layer(x)
    return x * w


def adversarial(x: T, w: T, net: nn.Module) -> Any:
    net.requires_grad_(False)
    noise = w.detach().requires_grad_()
    net(x * noise).sum().backward()
    net.requires_grad_(True)
    net(x).sum().backward()
    return noise.grad


def written_to(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    (g,) = torch.autograd.grad((x * x * w).sum(), x)
    with torch.no_grad():
        x.add_(g)
    x.requires_grad_(False)
    x.mul_(2)
    return x * 1


def checkpointed(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_()
    loss = checkpoint(lambda y: (y * w).sin(), x, use_reentrant=False).sum()
    (g,) = torch.autograd.grad(loss, x)
    x.requires_grad_(False)
    return g


def with_history(x: T, w: T, net: nn.Module) -> Any:
    y = w * 2
    x.requires_grad_()
    z = x * x * w
    x.requires_grad_(False)
    return z, y


def history_by_a_write(x: T, w: T, net: nn.Module) -> Any:
    y = w * 1
    x.requires_grad_()
    y.mul_(x)
    return y


def frozen_under_a_loss(x: T, w: T, net: nn.Module) -> Any:
    loss = (net(x) * w).sum()
    net.requires_grad_(False)
    loss.backward()
    net.requires_grad_(True)
    return loss.detach()


def after_a_view(x: T, w: T, net: nn.Module) -> Any:
    row = x[0]
    x.requires_grad_()
    (g,) = torch.autograd.grad((row * x * w).sum(), x)
    x.requires_grad_(False)
    return g


def after_a_view_and_a_write(x: T, w: T, net: nn.Module) -> Any:
    """To eager's autograd the views come from what has become a leaf: it counts the write."""
    y = x * 2
    row, part = x[0], y.view(-1)
    x.detach().add_(1)
    y.mul_(2)
    x.requires_grad_()
    y.requires_grad_()
    return row, part, y


def of_whole_numbers(x: T, w: T, net: nn.Module) -> Any:
    x.long().requires_grad_()


def history_of_its_own(x: T, w: T, net: nn.Module) -> Any:
    net.requires_grad_(False)
    net[0].weight.copy_(w[:1].expand(3, 3))
    x.requires_grad_().requires_grad_(False).mul_(w)
    return net[0].weight, x


def turned_in_place(x: T, w: T, net: nn.Module) -> Any:
    x.requires_grad_(False)
    x.t_()
    return w * 2


ONE_GRAPH = [
    left_on, returned, attributed, on_again, attacked, gradient_kept, penalised, frozen_for_a_while,
    frozen_layer_by_layer, adversarial, written_to, checkpointed,
]  # fmt: skip
OTHERS = [
    with_history, history_by_a_write, frozen_under_a_loss, after_a_view, after_a_view_and_a_write, of_whole_numbers,
    history_of_its_own, turned_in_place,
]  # fmt: skip


def outcome(program: Program, function: Program, grad: bool) -> list[Any]:
    """What a program gives, and all that autograd knows afterwards, of two calls."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    x, w = torch.randn(2, 3), torch.randn(2, 3, requires_grad=grad)
    seen: list[Any] = []
    for _ in range(2):
        try:
            result = function(x, w, net)
        except RuntimeError as error:
            seen.append(str(error))
            continue
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, T) and value.grad_fn is not None:
                value.sum().backward(retain_graph=True)
            seen.append((value.detach().clone(), value.is_leaf) if isinstance(value, T) else value)
        tensors = [x, w, *net.parameters()]
        seen += [(t.requires_grad, t.is_leaf, t.detach().clone()) for t in tensors]
        seen += [None if t.grad is None else t.grad.clone() for t in tensors]
    return seen


@pytest.mark.parametrize(
    ("grad", "backend", "program"), sweeps.combinations([False, True], ["eager", "native"], ONE_GRAPH + OTHERS)
)
def test_as_eager(program: Program, backend: str, grad: bool) -> None:
    findings = Findings()
    with findings.listening():
        got = outcome(program, argand.compile(program, backend=backend), grad)
    assert_same(got, outcome(program, program, grad))
    assert program in OTHERS or not findings.breaks


SECOND: list[Callable[[T], T]] = [lambda x: x.view(-1)[:3], lambda x: x[0], lambda x: x.detach(), lambda x: x]


def product(x: T, y: T) -> Any:
    x.requires_grad_()
    (g,) = torch.autograd.grad((x * y).sum(), x)
    return g, y.requires_grad, (y * 2).requires_grad


def write(x: T, y: T) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        y.add_(1)
        z = y * 2
        x.requires_grad_(False)
    return z


@pytest.mark.parametrize("program", [product, write])
def test_others_that_are_it_or_views_of_it(program: Callable[[T, T], Any]) -> None:
    compiled = argand.compile(program, backend="eager")
    for second in [lambda x: x * 2, *SECOND]:
        got, want = [], []
        for function, seen in ((compiled, got), (program, want)):
            x = torch.arange(6.0).view(2, 3).clone()
            y = second(x)
            seen += [function(x, y), x, y, x.requires_grad, y.requires_grad]
        assert_same(got, want)


def test_of_any_size() -> None:
    def program(x: T) -> Any:
        x.requires_grad_()
        (g,) = torch.autograd.grad((x**3).sum(), x)
        x.requires_grad_(False)
        return g

    compiled = argand.compile(program, backend="eager", dynamic=True, fullgraph=True)
    for size in (3, 4, 7):
        assert_same(compiled(torch.ones(size)), program(torch.ones(size)))


def test_where_it_has_to_be_outside() -> None:
    explanation = argand.explain(with_history)(torch.ones(2, 3), torch.ones(2, 3), nn.Linear(1, 1))
    assert [reason.where[-1].text for reason in explanation.break_reasons] == ["x.requires_grad_()"]
