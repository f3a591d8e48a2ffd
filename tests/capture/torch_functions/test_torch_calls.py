"""Calls into torch: modes, higher-order functions, custom operators, questions about torch's state."""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import argand
from argand import events
from helpers import CountingBackend, assert_same, check

X = torch.randn(3, 4)
W = torch.randn(3, 4, requires_grad=True)


def no_grad(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad(), torch.set_grad_enabled(False):
        z = x * 3
    return y, z, x * 4


@torch.no_grad()
def decorated(x):
    return x * 2


def questions(x):
    flags = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_tensor(x), torch.is_floating_point(x))
    torch.cpu.get_capabilities().get("avx2") if hasattr(torch.cpu, "get_capabilities") else None
    limits = (torch.finfo(x.dtype).max, torch.iinfo(torch.int32).max, torch.promote_types(torch.int8, torch.half))
    return x + limits[1], flags, limits[2], torch.result_type(x, 1), torch.broadcast_shapes((3, 1), (4,))


def tensor_attributes(x):
    shape = x.shape[0], x.size(-1), x.stride(), len(x), x.dim(), x.numel(), x.ndim
    kind = x.requires_grad, x.device, x.dtype, x.is_leaf, x.grad, x.type(), x.is_cuda, x.layout
    return shape, kind, x.T, x.mT, x.data * 2


def layouts(x):
    images = x.reshape(1, 3, 2, 2) + 1
    last = images.cpu(memory_format=torch.channels_last)
    kept = last.cpu(memory_format=torch.preserve_format) is last, images.cpu() is images
    return last * 2, last.stride(), kept


def writes(x):
    y = x.clone()
    y[y > 0] = 0
    y[1:] = y[0]
    y[..., 0] += 1
    torch.add(y, 1, out=y)
    return y.mul_(2)


def checks(x):
    torch._check(x.shape[0] == 3)
    torch._assert(x.shape[0] == 3, "three rows")
    return x + 1


def arrays(x):
    table = np.arange(4, dtype=np.float32) * np.sqrt(4.0)
    return x * torch.tensor(table), torch.from_numpy(table) + x, x * np.float64(2.0)


FUNCTIONS = [no_grad, decorated, questions, tensor_attributes, layouts, writes, checks, arrays]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("tensor", [X, W], ids=["plain", "grad"])
def test_in_one_graph(fn, tensor) -> None:
    check(fn, tensor.detach().clone().requires_grad_(tensor.requires_grad), fullgraph=True)


def test_is_compiling() -> None:
    def f(x):
        return x + 1, argand.is_compiling(), torch.compiler.is_compiling()

    assert argand.compile(f, backend="eager", fullgraph=True)(X)[1:] == (True, True)
    assert f(X)[1:] == (False, False)


def test_inference_mode() -> None:
    def f(x):
        with torch.inference_mode():
            return x * 2

    assert argand.compile(f, backend="eager", fullgraph=True)(X).is_inference()


def test_checkpoint() -> None:
    def f(x):
        return checkpoint(torch.sin, x, use_reentrant=False) + 1

    with torch.no_grad():
        check(f, X, fullgraph=True)
    check(f, X.clone().requires_grad_())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return grad * 7  # wrong on purpose: must be what is used


def test_autograd_function() -> None:
    def f(x):
        return Cube.apply(x) + 1

    check(f, X, fullgraph=True)
    x = X.clone().requires_grad_()
    argand.compile(f, backend="eager")(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 7))


def test_custom_operator() -> None:
    @torch.library.custom_op("argand_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k

    @scaled.register_fake
    def _(x, k):
        return torch.empty_like(x)

    check(lambda x: scaled(x, 3) + torch.ops.argand_tests.scaled(x, 2), X, fullgraph=True)


def test_overloads_that_nobody_has_asked_for_before() -> None:
    with torch.library._scoped_library("argand_overloads", "DEF") as library:
        for name, plus in (("plus(Tensor x)", lambda x: x + 1), ("plus.number(Tensor x, int n)", lambda x, n: x + n)):
            library.define(f"{name} -> Tensor")
            library.impl(name.partition("(")[0], plus, "CompositeImplicitAutograd")

        def program(x):
            plus = torch.ops.argand_overloads.plus
            return plus.default(x) * plus.number(x, 2), hasattr(plus, "other")

        compiled = argand.compile(program, backend="eager", fullgraph=True)
        assert_same(compiled(X), ((X + 1) * (X + 2), False))


def test_marks() -> None:
    @argand.allow_in_graph
    def helper(x):
        return x * 2 if x.dim() == 2 else x

    backend = CountingBackend()
    argand.compile(lambda x: helper(x) + 1, backend=backend, fullgraph=True)(X)
    assert helper in [n.target for n in backend.graphs[0].graph.nodes]

    calls = []

    @argand.assume_constant_result
    def setting():
        calls.append(1)
        return 3

    compiled = argand.compile(lambda x: x * setting(), backend="eager", fullgraph=True)
    compiled(X)
    compiled(X)
    assert len(calls) == 1


class Rounding(enum.Enum):
    DOWN = "floor"
    NEAREST = "round"


class Settings(NamedTuple):
    steps: int
    by: Rounding


@argand.allow_in_graph
class InSteps(torch.autograd.Function):
    """As torchao's float8 layers do, it makes a tensor of a class of its own on the way."""

    @staticmethod
    def forward(ctx, x, w, settings):
        ctx.save_for_backward(w)
        pair = TwoTensor(x * settings.steps, w * 1)
        rounded = getattr(torch, settings.by.value)(pair.a) / settings.steps
        return rounded * (pair * 2).b

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * TwoTensor(w, w).a, grad.sum(0).expand_as(w), None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_autograd_function_that_is_allowed_in_graph(backend) -> None:
    """One operation, with arguments that no graph could hold, guarded; its gradients are its own."""
    heard: list[str] = []
    compiled = argand.compile(lambda x, w, s: InSteps.apply(x.sin(), w, s) + x, backend=backend, fullgraph=True)
    stop = events.bus.subscribe(lambda event: heard.append(event.name), ("fallback", "graph_code"))
    for settings in (Settings(4, Rounding.DOWN), Settings(8, Rounding.NEAREST)):
        for _ in range(2):
            x, w = X.clone().requires_grad_(), W.detach().clone().requires_grad_()
            y = compiled(x, w, settings)
            expected = InSteps.apply(x.sin(), w, settings) + x
            torch.testing.assert_close(y, expected)
            torch.testing.assert_close(*(torch.autograd.grad(out.cos().sum(), (x, w)) for out in (y, expected)))
    stop()
    assert heard == ["graph_code"] * 2


def test_random_numbers_follow_the_seed() -> None:
    def f(x):
        return F.dropout(x, 0.5), torch.rand(2), torch.randn_like(x), torch.bernoulli(torch.full((3,), 0.5))

    check(f, X, fullgraph=True)


def test_associative_scan() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    def f(x):
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    got = argand.compile(f, backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(got, X.cumsum(0))


def test_functions_that_captured_code_decorates_with_context_managers() -> None:
    def f(x):
        @torch.no_grad()
        def without(y):
            return y * 2, torch.is_grad_enabled()

        @torch.enable_grad()
        def within(y):
            return y * 2, torch.is_grad_enabled()

        @torch.no_grad
        def bare(y):
            return y * 3

        @torch.autocast("cpu", torch.bfloat16)
        def cast(y):
            return y @ y.T, torch.is_autocast_enabled("cpu")

        @torch.no_grad()
        def rows(y):
            for row in y:
                yield row * 2

        disabled = torch.set_grad_enabled(False)(lambda y: y.sin())
        now = torch.is_grad_enabled()
        with torch.no_grad():
            inner = within(x)
        results = [*without(x), *within(x), bare(x), *cast(x), *rows(x), disabled(x), *inner]
        asked = [result.requires_grad for result in results if isinstance(result, torch.Tensor)]
        return results, asked, now, without.__name__, torch.is_grad_enabled()

    for grad in (True, False):
        check(f, torch.ones(2, 3, requires_grad=grad), fullgraph=True)
