"""`torch.autograd.grad` in compiled functions: in the graph, with eager's values, flags, identities and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import CountingBackend, assert_same, collected

BACKENDS = ["eager", "aot_eager", "native"]
grad = torch.autograd.grad


def leaf(*sizes: int) -> torch.Tensor:
    return (torch.arange(float(torch.Size(sizes).numel())).view(sizes) / 3).requires_grad_()


def simple(x: Any) -> Any:
    y = (x**2).sum()
    (g,) = grad(y, x)
    return g * 2


def of_a_local(x: Any) -> Any:
    x = x.detach().requires_grad_()
    y = (x.sin() * x).sum()
    return grad(y, [x])[0] + y.detach()


def seeded(x: Any, w: Any) -> Any:
    y = (x @ w).relu()
    return *grad(y, (x, w), grad_outputs=torch.ones_like(y)), y.detach()


def unused(x: Any, w: Any) -> Any:
    return grad((x * 2).sum(), [x, w], allow_unused=True)


def penalty(x: Any, w: Any) -> Any:
    """Of WGAN-GP, as it is mostly written."""
    g = grad(
        outputs=x @ w, inputs=x, grad_outputs=torch.ones(2, 2), create_graph=True, retain_graph=True, only_inputs=True
    )
    return (g[0].norm(2, dim=1) - 1) ** 2


def by_place(x: Any, w: Any) -> Any:
    return *grad((x * 2).sum(), (x,), None, True, False, True), *grad(
        (w * 3).sum(), (w, x), None, None, True, True, True
    )


def materialized(x: Any, w: Any) -> Any:
    return grad((x * 2).sum(), (x, w), materialize_grads=True)


def twice(x: Any) -> Any:
    y = x * 2
    z = (y**2).sum()
    (g,) = grad(z, y, retain_graph=True)
    (h,) = grad(z, x)
    return g, h, g.requires_grad, g.shape


def one_object(x: Any, w: Any) -> Any:
    a, b = grad((x + w.t()).sum(), (x, w))
    return a, b, a is b


def the_seed_itself(x: Any, v: Any) -> Any:
    (g,) = grad(x.clone(), x, v)
    return g, g is v, g * 2


def under_no_grad(x: Any) -> Any:
    y = (x**2).sum()
    with torch.no_grad():
        (g,) = grad(y, x)
        moved = x - 0.1 * g
    return moved, torch.is_grad_enabled()


def under_enable_grad(x: Any) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        (g,) = grad((x**3).sum(), x)
    return g, g.requires_grad


def descent(x: Any) -> Any:
    x = x.detach()
    for _ in range(3):
        x = x.requires_grad_(True)
        g = grad(((x - 1) ** 2).sum(), x)[0]
        x = (x - 0.1 * g).detach()
    return x


CASES: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
    simple: ((3,),), of_a_local: ((3,),), seeded: ((2, 3), (3, 2)), unused: ((3,), (3,)), materialized: ((3,), (4,)),
    penalty: ((2, 3), (3, 2)), by_place: ((3,), (4,)),
    twice: ((2, 3),), one_object: ((3, 3), (3, 3)), the_seed_itself: ((3,), (3,)), under_no_grad: ((3,),),
    under_enable_grad: ((3,),), descent: ((3,),),
}  # fmt: skip


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_program(fn: Callable[..., Any], backend: str) -> None:
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    with collected("fallback", "frame_raised") as seen:
        for _ in range(2):
            assert_same(fn(*[leaf(*s) for s in CASES[fn]]), compiled(*[leaf(*s) for s in CASES[fn]]), strides=False)
    assert not seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_gradients_are_off_outside(backend: str) -> None:
    compiled = argand.compile(under_enable_grad, backend=backend, fullgraph=True)
    with torch.no_grad():
        assert_same(under_enable_grad(leaf(3)), compiled(leaf(3)))


class Residual(nn.Module):
    """The loss of a differential equation: second derivatives of a network, differentiated again in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Any) -> Any:
        u = self.net(x)
        du = grad(u, x, torch.ones_like(u), create_graph=True)[0]
        ddu = grad(du, x, torch.ones_like(du), create_graph=True)[0]
        return ((ddu + u) ** 2).mean()


class Adapted(nn.Module):
    """Two steps of gradient descent inside the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        weights = dict(self.linear.named_parameters())
        for _ in range(2):
            loss = ((torch.func.functional_call(self.linear, weights, (x,)) - 1) ** 2).mean()
            steps = grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), steps)}
        return ((torch.func.functional_call(self.linear, weights, (x,)) - 1) ** 2).mean()


@pytest.mark.parametrize("make", [Residual, Adapted])
@pytest.mark.parametrize(("backend", "dynamic"), [("eager", None), ("aot_eager", True), ("native", None)])
def test_training(make: Any, backend: str, dynamic: bool | None) -> None:
    def trained(compile_it: bool) -> Any:
        model = make()
        run = argand.compile(model, backend=backend, dynamic=dynamic, fullgraph=True) if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for size in (5, 6, 7):
            loss = run(leaf(size, 1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses, [p.detach() for p in model.parameters()]

    assert_same(trained(False), trained(True))


@pytest.mark.parametrize("fn", [lambda x: grad(x * 2, x), lambda x: grad(x.detach().sum(), x)])
def test_errors_of_the_program(fn: Any) -> None:
    with pytest.raises(RuntimeError) as want:
        fn(leaf(3))
    with pytest.raises(RuntimeError) as got:
        argand.compile(fn, backend="eager", fullgraph=True)(leaf(3))
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_history_outside_the_graph(backend: str) -> None:
    """The way from `y` to `x` leads outside: the compiled code must not take it for absent."""

    def fn(x: Any, y: Any) -> Any:
        return grad((y * x).sum(), x, allow_unused=True)

    compiled = argand.compile(fn, backend=backend)
    for scale in (1.0, 2.0):
        want, got = leaf(3), leaf(3)
        assert_same(fn(want, want * scale), compiled(got, got * scale))
        want, got = leaf(3), leaf(3)
        assert_same(fn(want, leaf(3)), compiled(got, leaf(3)))


def test_hooks_of_inputs_run() -> None:
    compiled = argand.compile(simple, backend="native")
    compiled(leaf(3))
    hooked = leaf(3)
    hooked.register_hook(lambda g: g * 10)
    plain = leaf(3)
    plain.register_hook(lambda g: g * 10)
    assert_same(simple(plain), compiled(hooked))
    kept = [leaf(3) * 2, leaf(3) * 2]
    for each, run in zip(kept, (simple, argand.compile(simple, backend="aot_eager"))):
        each.retain_grad()
        run(each)
    assert_same(*(each.grad for each in kept))


def test_one_graph() -> None:
    backend = CountingBackend()
    argand.compile(simple, backend=backend, fullgraph=True)(leaf(3))
    (graph,) = backend.graphs
    assert any("autograd_grad" in str(node.target) for node in graph.graph.nodes)


def of_three(a: Any, b: Any, c: Any) -> Any:
    return grad((a * b * b).sum(), [b, c], allow_unused=True)


def with_graph(a: Any, b: Any, c: Any) -> Any:
    return grad((a * b).sum() * 2, b, create_graph=True)[0] * c


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [of_three, with_graph])
def test_inputs_that_are_one_tensor_in_another_call(fn: Any, backend: str) -> None:
    compiled = argand.compile(fn, backend=backend)
    x, y, z = leaf(3), (leaf(3) * 2).detach().requires_grad_(), leaf(3).detach() + 1
    for args in ((x, y, z), (x, y, y), (x, x, y), (y, x, y), (x, x, x), (x, y, x), (x, y, z.requires_grad_())):
        assert_same(compiled(*args), fn(*args))
