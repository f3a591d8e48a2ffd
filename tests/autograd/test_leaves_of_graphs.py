"""Leaves that compiled code makes itself (noise of attacks, new parameters) get eager's gradients, on every backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import argand
import sweeps
from helpers import assert_same, collected

Program = Callable[[torch.Tensor, nn.Module], Any]
PROGRAMS: dict[str, Program] = {}


def program(fn: Program) -> Program:
    PROGRAMS[fn.__name__] = fn
    return fn


def loss_of(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m(x).exp().sum()


@program
def requires_grad_of_a_constructor(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x, requires_grad=True)
    loss_of(m, x + d).backward()
    return d.grad


@program
def requires_grad_method(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x)
    d.requires_grad_()
    loss_of(m, x + d).backward()
    return d.grad


@program
def requires_grad_attribute(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x)
    d.requires_grad = True
    loss_of(m, x + d).backward()
    return d.grad


@program
def tensors_of_literals(x: torch.Tensor, m: nn.Module) -> Any:
    w = torch.tensor([0.1] * 8, requires_grad=True)
    b = torch.tensor(0.5, requires_grad=True)
    (loss_of(m, x * w) + b).backward()
    return w.grad, b.grad


@program
def full(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.full((8,), 0.5, requires_grad=True)
    loss_of(m, x + d).backward()
    return d.grad


@program
def empty_then_filled(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.empty(8, requires_grad=True)
    with torch.no_grad():
        d.fill_(0.3)
    loss_of(m, x * d).backward()
    return d, d.grad


@program
def random(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.randn(8, requires_grad=True)
    loss_of(m, x + d).backward()
    want = torch.autograd.grad(loss_of(m, x + d), d)[0]
    return torch.allclose(d.grad, want, atol=1e-4) if d.grad is not None else None


@program
def parameter(x: torch.Tensor, m: nn.Module) -> Any:
    d = nn.Parameter(torch.full((8,), 0.1))
    e = nn.Parameter(x.detach().clone())
    loss_of(m, x * d + e).backward()
    return d.grad, e.grad


@program
def detached_input(x: torch.Tensor, m: nn.Module) -> Any:
    d = x.detach().requires_grad_()
    loss_of(m, d * 2).backward()
    return d.grad, d


@program
def detached_copy(x: torch.Tensor, m: nn.Module) -> Any:
    d = x.detach().clone().requires_grad_(True)
    loss_of(m, d * 2).backward()
    return d.grad


def made_in_a_helper(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x, requires_grad=True)


@program
def in_an_inlined_function(x: torch.Tensor, m: nn.Module) -> Any:
    d = made_in_a_helper(x)
    loss_of(m, x + d).backward()
    return d.grad


@program
def several(x: torch.Tensor, m: nn.Module) -> Any:
    a = torch.zeros_like(x, requires_grad=True)
    b = torch.ones_like(x).requires_grad_()
    c = torch.ones(8)
    loss_of(m, (x * b + a) * c).backward()
    return a.grad, b.grad, c.grad


@program
def retain_grad(x: torch.Tensor, m: nn.Module) -> Any:
    a = torch.zeros_like(x, requires_grad=True)
    h = m(x + a)
    h.retain_grad()
    h.exp().sum().backward()
    return a.grad, h.grad


@program
def autograd_grad(x: torch.Tensor, m: nn.Module) -> Any:
    a = torch.zeros_like(x, requires_grad=True)
    return torch.autograd.grad(loss_of(m, x + a), a)[0] + x


@program
def second_order(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.full_like(x, 0.1).requires_grad_()
    (g,) = torch.autograd.grad((d**3).sum(), d, create_graph=True)
    (g**2).sum().backward()
    return d.grad


class Attacked(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.delta = torch.zeros_like(x, requires_grad=True)
        return self.inner(x + self.delta)


@program
def attribute_of_a_module(x: torch.Tensor, m: nn.Module) -> Any:
    outer = Attacked(m)
    outer(x).exp().sum().backward()
    return outer.delta.grad


@program
def fast_gradient_sign(x: torch.Tensor, m: nn.Module) -> Any:
    x = x.detach().clone().requires_grad_()
    F.cross_entropy(m(x), torch.arange(x.shape[0]) % 8).backward()
    return (x + 0.1 * x.grad.sign()).clamp(0, 1).detach()


@program
def projected_gradient_descent(x: torch.Tensor, m: nn.Module) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    y = torch.arange(x.shape[0]) % 8
    for _ in range(3):
        F.cross_entropy(m(x + delta), y).backward()
        delta.data = (delta + 0.4 * delta.grad.data).clamp(-0.3, 0.3)
        delta.grad.zero_()
    return delta.detach()


@program
def attack_with_autograd_grad(x: torch.Tensor, m: nn.Module) -> Any:
    y = torch.arange(x.shape[0]) % 8
    adv = x.detach() + 0.01
    for _ in range(3):
        adv.requires_grad_()
        g = torch.autograd.grad(F.cross_entropy(m(adv), y), [adv])[0]
        adv = adv.detach() + 0.05 * torch.sign(g.detach())
        adv = torch.min(torch.max(adv, x - 0.1), x + 0.1).clamp(0, 1)
    return adv


@program
def attack_with_an_optimizer(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x, requires_grad=True)
    optimizer = torch.optim.SGD([d], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        m(x + d).pow(2).sum().backward()
        optimizer.step()
    return d


@program
def variational_inference(x: torch.Tensor, m: nn.Module) -> Any:
    """As a probabilistic program does: parameters are made in the first round, kept in a dictionary, and trained."""
    store: dict[str, torch.Tensor] = {}
    for _ in range(3):
        for name in ("loc", "scale"):
            if name not in store:
                store[name] = torch.zeros(8).requires_grad_()
        z = store["loc"] + store["scale"].exp() * x
        loss = (m(z) ** 2).mean() - store["scale"].sum()
        loss.backward()
        with torch.no_grad():
            for value in store.values():
                value -= 0.1 * value.grad
                value.grad = None
    return store["loc"], store["scale"]


@program
def made_under_no_grad(x: torch.Tensor, m: nn.Module) -> Any:
    with torch.no_grad():
        d = (x * 2).requires_grad_()
    loss_of(m, x + d).backward()
    return d.grad


@program
def hook(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x, requires_grad=True)
    d.register_hook(lambda g: g * g)
    loss_of(m, x + d).backward()
    return d.grad


@program
def used_twice(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros_like(x, requires_grad=True)
    loss_of(m, x + d).backward()
    loss_of(m, x * d).backward()
    return d.grad


@program
def no_longer_required(x: torch.Tensor, m: nn.Module) -> Any:
    e = torch.ones_like(x).requires_grad_().requires_grad_(False)
    d = m(x).detach().requires_grad_()
    (d * 2 * e).sum().backward()
    return d.grad, e.grad, e


@program
def gradient_handed_back_by_hand(x: torch.Tensor, m: nn.Module) -> Any:
    h = m(x)
    d = h.detach().requires_grad_()
    (d**2).sum().backward()
    h.backward(d.grad)
    return d.grad


@program
def viewed(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.zeros(64, requires_grad=True)
    loss_of(m, x + d[: x.numel()].view_as(x)).backward()
    return d.grad


@program
def new_module(x: torch.Tensor, m: nn.Module) -> Any:
    layer = nn.Linear(8, 3)
    with torch.no_grad():
        layer.weight.fill_(0.1)
        layer.bias.zero_()
    layer(x).exp().sum().backward()
    return layer.weight.grad, layer.bias.grad


@program
def only_the_leaf_needs_a_gradient(x: torch.Tensor, m: nn.Module) -> Any:
    w = torch.full((8, 8), 0.1, requires_grad=True)
    loss = ((x @ w - x) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    return w, w.grad, loss.detach()


@program
def saved_and_then_written(x: torch.Tensor, m: nn.Module) -> Any:
    d = (x + 0.5).requires_grad_()
    loss = (x * d**2).sum()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        d += 1
    try:
        loss.backward()
    except RuntimeError as error:
        return "inplace operation" in str(error), d.grad
    return None, d.grad


@program
def returned(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.ones_like(x).requires_grad_()
    return d, d


@program
def returned_with_a_result(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.ones_like(x).requires_grad_()
    return d, loss_of(m, x + d), d.detach()


@program
def returned_with_views(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.ones_like(x).requires_grad_()
    return d[0], d, d.t(), (d * x).sum()


@program
def part_of_a_returned_buffer(x: torch.Tensor, m: nn.Module) -> Any:
    buffer = x + 1
    d = buffer[1:].detach().requires_grad_()
    return buffer, d, (d * d).sum()


@program
def dropped(x: torch.Tensor, m: nn.Module) -> Any:
    d = torch.ones_like(x).requires_grad_()
    return (x * d).sum(), x * 2


@program
def detached_input_returned(x: torch.Tensor, m: nn.Module) -> Any:
    d = x.detach().requires_grad_()
    return d, m(d).exp()


def tensors(value: Any) -> list[Any]:
    return [one for item in value for one in tensors(item)] if isinstance(value, (tuple, list)) else [value]


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    torch.manual_seed(0)
    m = nn.Linear(8, 8)
    x = x.clone()
    result = tensors(fn(x, m))
    carrying = [one for one in result if isinstance(one, torch.Tensor) and one.requires_grad]
    if carrying:
        before = [one.grad for one in carrying]
        torch.stack([(one**2).sum() for one in carrying]).sum().backward()
        result += [one.grad for one in carrying if one.is_leaf] + before
    flags = [(one.requires_grad, one.is_leaf, type(one).__name__) for one in result if isinstance(one, torch.Tensor)]
    return [*result, x.requires_grad, *[p.grad for p in m.parameters()], *flags]


def check(name: str, backend: str, **options: Any) -> None:
    fn = PROGRAMS[name]
    compiled = argand.compile(fn, backend=backend, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (4, 4, 6):
            x = torch.rand(rows, 8)
            assert_same(outcome(fn, x), outcome(compiled, x))


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(PROGRAMS, ["eager", "aot_eager"]))
def test_leaf(name: str, backend: str) -> None:
    check(name, backend)


@pytest.mark.parametrize("name", PROGRAMS)
def test_leaf_of_varying_size(name: str) -> None:
    check(name, "aot_eager", dynamic=True)


@pytest.mark.parametrize(
    "name",
    ["requires_grad_of_a_constructor", "several", "gradient_handed_back_by_hand", "projected_gradient_descent",
     "returned_with_views", "part_of_a_returned_buffer", "saved_and_then_written", "detached_input"],
)  # fmt: skip
def test_leaf_natively(name: str) -> None:
    check(name, "native")


def test_a_leaf_is_no_reason_to_run_eagerly() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        d = torch.zeros_like(x, requires_grad=True)
        return d, ((x + d) * w).sum()

    with collected("fallback") as fallbacks:
        compiled = argand.compile(fn, backend="aot_eager", fullgraph=True)
        d, loss = compiled(torch.ones(3), torch.arange(3.0))
    loss.backward()
    assert d.grad.tolist() == [0.0, 1.0, 2.0] and not fallbacks
    with torch.no_grad():
        d, loss = compiled(torch.ones(3), torch.arange(3.0))
    assert d.requires_grad and d.is_leaf and not loss.requires_grad


def test_detached_views_of_varying_size_stay_detached() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y[1:].detach(), x[1:].detach()

    compiled = argand.compile(fn, backend="aot_eager", dynamic=True)
    for rows in (4, 6):
        assert [y.requires_grad for y in compiled(torch.ones(rows, 2, requires_grad=True))] == [True, False, False]


def leaf_and_row(y: torch.Tensor) -> Any:
    w = y.detach()[0].requires_grad_()
    return w, w.view(2)


def leaf_that_is_a_row(y: torch.Tensor) -> Any:
    w = y[0].requires_grad_()
    return w, w.view(1, 2), w * 2


def view_of_a_parameter(y: torch.Tensor) -> Any:
    return nn.Parameter(y).view(4)


def views_without_the_leaf(y: torch.Tensor) -> Any:
    w = y.detach().requires_grad_()
    return w.unbind(0)[0], w.chunk(2)[1], w.expand(3, 2, 2), w.t(), w.diagonal()


def leaf_that_is_a_view(y: torch.Tensor) -> Any:
    w = y.detach()
    v = w.view(4)
    v.requires_grad_()
    return w, v, v.view(2, 2), w.view(4), v[1:3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "fn", [leaf_and_row, leaf_that_is_a_row, view_of_a_parameter, views_without_the_leaf, leaf_that_is_a_view]
)
def test_views_of_leaves_over_the_memory_of_inputs(fn: Callable[..., Any], backend: str) -> None:
    """To autograd they may be views of the input, of which the leaf is one: they lost their gradient."""

    def seen(fn: Callable[..., Any]) -> Any:
        y = torch.arange(4.0).view(2, 2)
        results = pytree.tree_leaves(fn(y))
        told = [
            (t.is_leaf, t.requires_grad, t.grad_fn is None, t.data_ptr() - y.data_ptr()) for t in results if t.is_leaf
        ]
        sum((t * t).sum() for t in results if t.requires_grad).backward()
        return told, [t.tolist() for t in results], [t.grad for t in results if t.is_leaf]

    compiled = argand.compile(fn, backend=backend)
    want = seen(fn)
    assert_same(want, seen(compiled))
    assert_same(want, seen(compiled))


@pytest.mark.parametrize("make", [torch.Tensor.detach, lambda h: h.data, lambda h: h.detach().view(4), nn.Parameter])
def test_views_of_leaves_over_the_memory_of_results(make: Callable[..., Any]) -> None:
    """The gradient of such a view is the leaf's: it was added to that of the result, too."""
    views = (
        lambda w: w.expand(2, *w.shape),
        lambda w: w.t(),
        lambda w: w[0],
        lambda w: w.view(2, 2)[:, 1:],
        lambda w: w,
    )
    for view in views:
        for first in (True, False):

            def program(p: torch.Tensor) -> Any:
                h = p.sin() * p
                v = view(make(h).requires_grad_())
                return (h, v) if first else (v, h)

            got = []
            for call in (program, argand.compile(program, backend="aot_eager")):
                p = torch.arange(4.0).view(2, 2).requires_grad_()
                results = call(p)
                sum((t * t).sum() for t in results).backward()
                got.append([p.grad, *[t.detach() for t in results]])
            assert_same(*got)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_memory_of_an_input_that_is_no_view_of_it_to_autograd(backend: str) -> None:
    """What is added to it has the gradient, not the input, and does not lose it."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.detach().mul_(2).add_(w.sum())[:, :1], x * w[0, 0]

    compiled, gradients = argand.compile(fn, backend=backend), []
    for each in (fn, compiled):
        x, w = torch.ones(3, 2, requires_grad=True), torch.eye(2).requires_grad_()
        part, product = each(x, w)
        gradients.append(torch.autograd.grad(part.square().sum() + 3 * product.sum(), [x, w]))
    assert_same(*gradients)
