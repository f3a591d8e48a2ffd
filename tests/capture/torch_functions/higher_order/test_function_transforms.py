"""`torch.func.functionalize` and `linearize`, and what jvp and jacfwd give where a tangent depends on nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils import _pytree as pytree

import argand
from argand import events

T = torch.Tensor


def written(x: T) -> T:
    y = x.clone()
    y.view(-1).add_(1)
    y.mul_(2)
    return y.sin() + x


def by_item(x: T) -> T:
    y = x.clone()
    y[..., 0] = y[..., 1] * 3
    return y * x


def functionalized_write(x: T, w: T) -> Any:
    y = x * 1
    return functionalize(lambda a: a.add_(w).sin())(y), y


def linear(x: T, w: T) -> Any:
    value, push = linearize(lambda a: (a @ w.T).sin() * 2, x)
    return value, push(w), push(x)


def linear_tree(x: T, w: T) -> Any:
    value, push = linearize(lambda a, b: {"s": (a * b).sin(), "t": a.sum()}, x, w)
    return value, push(w, x)


def linear_mapped(x: T, w: T) -> Any:
    _, push = linearize(lambda a: a.sin() * a, x)
    return vmap(push)(torch.stack([w, x]))


PROGRAMS: dict[str, Callable[[T, T], Any]] = {
    "functionalize": lambda x, w: functionalize(written)(x),
    "functionalize, views too": lambda x, w: functionalize(written, remove="mutations_and_views")(x * w),
    "functionalize, an argument written to": functionalized_write,
    "vmap of functionalize": lambda x, w: vmap(functionalize(written))(x),
    "functionalize of grad": lambda x, w: functionalize(grad(lambda a: (a * w).sin().sum()))(x),
    "jvp, strict": lambda x, w: jvp(lambda a: a * w, (x,), (w,), strict=True),
    "jvp of what is flat": lambda x, w: jvp(lambda a: a.round() * w, (x,), (w,)),
    "jvp of what is constant": lambda x, w: jvp(lambda a: w * 2, (x,), (w,)),
    "jvp by zeros": lambda x, w: jvp(lambda a: a * 0 + w.sum(), (x,), (w,)),
    "tangents alone": lambda x, w: jvp(lambda a: a.round() * w, (x,), (x.sin(),))[1] * 2,
    "vmap of jvp": lambda x, w: vmap(lambda a: jvp(lambda b: b.floor() * w[0], (a,), (a,))[1])(x),
    "jacfwd by the last argument": lambda x, w: jacfwd(lambda a, b: a * b, argnums=-1)(x, w),
    "jacfwd by one of several": lambda x, w: jacfwd(lambda a, b: (a.exp(), b * a.detach()), argnums=1)(x, w),
    "jacrev in place": lambda x, w: jacrev(lambda a: (a * w).sum(0), chunk_size=2, _preallocate_and_copy=True)(x),
}

LINEAR = {"linearize": linear, "linearize of several": linear_tree, "vmap of what linearize gives": linear_mapped}


def outcome(program: Callable[[T, T], Any], grads: bool) -> Any:
    x, w = (torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).requires_grad_(grads) for n in (1, 2))
    try:
        results = pytree.tree_leaves(program(x, w))
        for number, result in enumerate(results):
            if result.requires_grad:
                (result.cos() * (number + 1)).sum().backward(retain_graph=True)
    except Exception as error:
        return type(error), str(error)
    return [t.detach() for t in results], [t.requires_grad for t in results], x.grad, w.grad


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str, grads: bool) -> None:
    fallbacks: list[Any] = []
    compiled = argand.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    stop = events.bus.subscribe(lambda event: fallbacks.append(event.data), ("fallback",))
    try:
        for _ in range(2):
            same(outcome(compiled, grads), outcome(PROGRAMS[name], grads))
    finally:
        stop()
    assert fallbacks == []


@pytest.mark.parametrize("name", ["functionalize", "jvp of what is flat", "tangents alone"])
def test_native(name: str) -> None:
    same(outcome(argand.compile(PROGRAMS[name], fullgraph=True), True), outcome(PROGRAMS[name], True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", LINEAR)
def test_linearize(name: str, backend: str) -> None:
    """In one graph where nothing requires gradients: what torch's linearize gives does not lead back to anything."""
    same(outcome(argand.compile(LINEAR[name], backend=backend, fullgraph=True), False), outcome(LINEAR[name], False))
    same(outcome(argand.compile(LINEAR[name], backend=backend), True), outcome(LINEAR[name], True))


def counted(transform: Callable[..., Any]) -> Callable[[T], Any]:
    def program(x: T) -> Any:
        calls, count = [], 0

        def function(a: T) -> T:
            nonlocal count
            calls.append(1)
            count += 1
            return a.sin()

        value, further = transform(function, x)
        return value, further(x), further(value), len(calls), count

    return program


def drawing(x: T) -> Any:
    torch.manual_seed(3)
    value, pull = vjp(lambda a: a * torch.rand_like(a), x)
    return value, pull(x), torch.rand(2)


def test_functions_are_called_as_often_as_by_eager() -> None:
    x = torch.randn(3)
    for program in (counted(linearize), counted(vjp), drawing):
        same(argand.compile(program, backend="eager")(x), program(x))


def test_what_is_not_nested_in_eager_is_as_in_eager() -> None:
    """torch's linearize of a gradient gives zeros."""
    programs: list[Callable[[T], Any]] = [
        lambda x: linearize(lambda a: grad(lambda b: b.exp().prod())(a), x)[1](x),
        lambda x: vmap(lambda a: jvp(lambda b: b * a, (a,), (a,)))(linearize(torch.sin, x)[1](x)),
        lambda x: grad(lambda a: linearize(torch.sin, a.detach())[1](a).sum())(x),
    ]
    x = torch.randn(3)
    for program in programs:
        same(argand.compile(program, backend="eager")(x), program(x))


def test_what_eager_refuses() -> None:
    programs: dict[str, Callable[[T, T], Any]] = {
        "no formula": lambda x, w: functionalize(by_item)(x),
        "strict": lambda x, w: jvp(lambda a: w * 2, (x,), (w,), strict=True),
    }
    for program in programs.values():
        want = outcome(program, True)
        assert isinstance(want[0], type)
        assert outcome(argand.compile(program, backend="aot_eager"), True) == want
