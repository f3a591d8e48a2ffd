"""What is compiled need not be a function of the program's: builtins, torch's functions, their transforms, generators."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from tests.helpers import CountingBackend

import argand
from argand.errors import Unsupported

X = torch.randn(3)


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


ROOTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "torch.sin": (torch.sin, (X,)),
    "Tensor.add": (torch.Tensor.add, (X, X)),
    "x.add": (X.add, (X,)),
    "operator.add": (operator.add, (X, X)),
    "reduce": (functools.reduce, (operator.add, [X, X])),
    "einsum": (torch.einsum, ("i,i->i", X, X)),
    "packet": (torch.ops.aten.add, (X, X)),
    "overload": (torch.ops.aten.add.Tensor, (X, X)),
    "vmap": (torch.vmap(sine), (torch.randn(4, 3),)),
    "grad": (torch.func.grad(sine), (X,)),
    "no_grad": (torch.no_grad()(sine), (X,)),
    "Function": (Double.apply, (X,)),
    "partial": (functools.partial(torch.add, X), (X,)),
    "partial of vmap": (functools.partial(torch.vmap(sine)), (torch.randn(4, 3),)),
    "lru_cache": (functools.lru_cache(sine), (X,)),
    "numpy.sin": (numpy.sin, (X.numpy(),)),
    "linear": (torch.nn.functional.linear, (torch.randn(2, 3), torch.randn(4, 3))),
}


@pytest.mark.parametrize("name", ROOTS)
def test_root_is_one_graph(name: str) -> None:
    fn, args = ROOTS[name]
    backend = CountingBackend()

    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        result, expected = compiled(*args), fn(*args)
        torch.testing.assert_close(torch.as_tensor(result), torch.as_tensor(expected))
    assert len(backend.graphs) == 1


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("fn", [coroutine, torch.save, print])
def test_root_that_cannot_be_captured_is_not_taken_for_a_full_graph(fn: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported):
        argand.compile(fn, backend="eager", fullgraph=True)(X)


def test_generator_function() -> None:
    def numbers(x: torch.Tensor) -> Any:
        yield x + 1
        yield x * 2

    for fn in (numbers, torch.no_grad()(numbers)):
        for ours, eager in zip(argand.compile(fn, backend="eager")(X), fn(X), strict=True):
            torch.testing.assert_close(ours, eager)


def test_two_builtins_do_not_share_compiled_versions() -> None:
    with argand.config.patch(cache_size_limit=1):
        for fn in (torch.sin, torch.cos, torch.exp):
            graphs = argand.explain(fn)(X).graph_count
            assert graphs == 1


def test_each_function_of_a_decorator_has_versions_for_itself() -> None:
    """They share the code of its wrapper, whose limit counts the versions around one of them."""

    def decorated(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return function(x) + 1

        return wrapper

    def scaled(factor: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return decorated(eval(f"lambda x: x * {factor}"))

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        forward: Callable[..., object] = graph.forward
        return forward

    with argand.config.patch(cache_size_limit=2):
        compiled = [argand.compile(scaled(factor), backend=backend) for factor in range(2, 8)]
        for _ in range(2):
            for factor, function in enumerate(compiled, 2):
                assert torch.equal(function(torch.ones(3)), torch.full((3,), factor + 1.0))
    assert [sum(node.op.startswith("call") for node in graph.graph.nodes) for graph in graphs] == [
        2
    ] * 6  # not the function's alone
