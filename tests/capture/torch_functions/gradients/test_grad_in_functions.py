"""`torch.autograd.grad` in the forward and the backward of an `autograd.Function`, random programs against eager."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend

_OPERATIONS = ("(a * b).sin()", "a.exp() - b * b", "torch.tanh(a @ b.t()) @ b", "a.clone() + 3 * b.cos()", "a * a * a")
_TEXT = """
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        result = {compute}
        if {first}:
            with torch.enable_grad():
                inner = a.detach().requires_grad_()
                a, outer = inner, a
                slope = torch.autograd.grad(({other}).sum(), inner)[0]
                a = outer
            result = result + slope
        kept = {{"result": result, "detached": result.detach()}}
        ctx.save_for_backward(a, b, *([kept["{keeps}"]] if "{keeps}" in kept else []))
        ctx.more = b if "{keeps}" == "attribute" else None
        return result

    @staticmethod
    def backward(ctx, grad):
        a, b, *rest = ctx.saved_tensors
        b = b if ctx.more is None else ctx.more
        a = a.detach().requires_grad_() if "{detached}" != "none" else a
        b = b.detach().requires_grad_() if "{detached}" == "both" else b
        with torch.enable_grad():
            y = {compute}
            for kept in rest:
                y = y * kept.detach()
            y = y if {seeded} else (y * grad).sum()
        wanted = (a, b) if {both} else (a,)
        seed = grad if {seeded} else None
        gradients = torch.autograd.grad(y, wanted, seed, create_graph={create}, allow_unused={unused})
        return (*gradients, None)[:2]
"""


def function(rng: random.Random) -> type[torch.autograd.Function]:
    """A random function of two tensors whose backward recomputes its forward, or something like it."""
    choices = {
        "compute": rng.choice(_OPERATIONS),
        "other": rng.choice(_OPERATIONS),
        "detached": rng.choice(("both", "first", "none")),
        "keeps": rng.choice(("inputs", "inputs", "result", "attribute", "detached")),
        "create": rng.random() < 0.4,
        "unused": rng.random() < 0.5,
        "seeded": rng.random() < 0.6,
        "both": rng.random() < 0.7,
        "first": rng.random() < 0.3,
    }
    names: dict[str, Any] = {"torch": torch}
    exec(_TEXT.format(**choices), names)
    cls: type[torch.autograd.Function] = names["Recomputed"]
    return cls


def program(rng: random.Random) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Inputs of the function are leaves, computed, the same, or made of each other."""
    outer, inner = function(rng), function(rng)
    before: Callable[..., tuple[torch.Tensor, torch.Tensor]] = rng.choice([
        lambda x, w: (x, w),
        lambda x, w: (x * 2, w.cos()),
        lambda x, w: (x, x.sin()),
        lambda x, w: (x.sin(), x),
        lambda x, w: (x * w, w.detach()),
        lambda x, w: (x, x),
    ])  # fmt: skip
    nested = rng.random() < 0.3

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = outer.apply(*before(x, w))
        return inner.apply(y, w) if nested else y * 2

    return run


def gradients(f: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor, twice: bool) -> list[object]:
    """The result, its gradients and the gradients of these, or what was raised."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    try:
        y = f(x, w)
        first = torch.autograd.grad(y.sum(), (x, w), create_graph=twice, allow_unused=True)
        second: tuple[object, ...] = ()
        total = [g.sin().sum() for g in first if g is not None and g.requires_grad]
        if twice and total:
            second = torch.autograd.grad(sum(total[1:], total[0]), (x, w), allow_unused=True)
        return [y, *first, *[g is not None and g.requires_grad for g in first], *second]
    except RuntimeError as error:
        return [type(error)]


def differences(seed: int, backend: str) -> Iterator[str]:
    """Where a compiled program differs from eager."""
    rng = random.Random(seed)
    f, twice = program(rng), rng.random() < 0.5
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    argand.reset()
    want, got = gradients(f, x, w, twice), gradients(argand.compile(f, backend=backend), x, w, twice)
    if len(want) != len(got):
        yield f"{want} and {got}"
    for number, (one, other) in enumerate(zip(want, got)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if not torch.allclose(one, other):
                yield f"result {number}: {one} and {other}"
        elif one is not other:
            yield f"result {number}: {one} and {other}"


@pytest.mark.parametrize("backend, seeds", [("eager", range(24)), ("native", range(100, 103))])
def test_random_functions(backend: str, seeds: range) -> None:
    """Values, which gradients there are, what requires grad, and gradients of gradients."""
    assert [text for seed in seeds for text in differences(seed, backend)] == []


class _Recomputed(torch.autograd.Function):
    """As checkpoints of libraries are written: the backward runs the forward again, and differentiates that."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            y = torch.tanh(x @ w)
        return torch.autograd.grad(y, (x, w), grad)


class _Pulled(_Recomputed):
    """The same by `torch.func.vjp`."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = torch.func.vjp(lambda x, w: torch.tanh(x @ w), *ctx.saved_tensors)[1](grad)
        return result


@pytest.mark.parametrize("cls", [_Recomputed, _Pulled])
def test_one_graph(cls: type[torch.autograd.Function]) -> None:
    """One graph, with eager's gradients."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cls.apply(x.sin(), w) * 2
        return result

    backend = CountingBackend()
    x, w = torch.randn(4, 3), torch.randn(3, 5)
    want, got = (
        gradients(run, x, w, False),
        gradients(argand.compile(run, backend=backend, fullgraph=True), x, w, False),
    )
    torch.testing.assert_close(got, want)
    assert len(backend.graphs) == 1


class _Switching(torch.autograd.Function):
    """A backward that runs parts with gradients and parts without, whatever the mode it is run in."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = ctx.saved_tensors
        with torch.no_grad():
            fixed = b.sin()
            with torch.enable_grad():
                moving = a.cos()
            more = a * fixed
        with torch.set_grad_enabled(False):
            rest = a * 3
        with torch.enable_grad(), torch.no_grad():
            last = b * 5
        return grad * b * fixed + moving + last, grad * a * more * b + rest


def test_modes_in_a_backward_that_is_differentiated() -> None:
    """What a backward computes outside of its own modes is differentiated where somebody differentiates it."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Switching.apply(x, w)
        return result

    x, w = torch.randn(4, 3), torch.randn(4, 3)
    want = gradients(run, x, w, True)
    for backend in ("eager", "native"):
        torch.testing.assert_close(gradients(argand.compile(run, backend=backend), x, w, True), want)
