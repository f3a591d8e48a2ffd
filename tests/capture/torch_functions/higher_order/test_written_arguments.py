"""autograd.Functions whose forward writes to its arguments without saying so: autograd records nothing of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend


class Stable(torch.autograd.Function):
    """As several packages write their softmax-like functions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        x -= x.max(dim, keepdim=True)[0]
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0], None


class OfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, keep: bool) -> torch.Tensor:
        ctx.asked = x.requires_grad, y.requires_grad
        x[..., 0].mul_(2)
        y.add_(x.sum())
        ctx.save_for_backward(x if keep else x * 1, y * 1)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        assert ctx.asked == ctx.needs_input_grad[:2]
        return grad * y, grad * x, None


class GivesBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def of_an_intermediate(x: torch.Tensor) -> Any:
    y = x * 2
    return Stable.apply(y).sum() + (y.detach() * 3).sum(), y


def of_a_transposed(x: torch.Tensor) -> Any:
    y = (x * 2).t()
    return Stable.apply(y, 0).square().sum(), y, y.t()


def of_a_part(x: torch.Tensor) -> Any:
    y = x * 2
    return Stable.apply(y[1:]).square().sum(), y.detach() + 1


def of_the_input(x: torch.Tensor) -> Any:
    return Stable.apply(x).square().sum(), x.detach() * 1


def twice(x: torch.Tensor) -> Any:
    y = x * 2
    return (Stable.apply(y) + Stable.apply(y.detach().requires_grad_())).sum() + Stable.apply(x * 3).sum(), y


def of_two(x: torch.Tensor) -> Any:
    a, b = x * 2, x.detach() + 1
    return OfTwo.apply(a, b, False).sum(), a, b


IN_ONE_GRAPH = [of_an_intermediate, of_a_transposed, of_a_part, of_the_input, twice, of_two]


def kept(x: torch.Tensor) -> Any:
    a, b = x * 2, x * 3
    return OfTwo.apply(a, b, True).sum(), a


def one_for_both(x: torch.Tensor) -> Any:
    a = x * 2
    return OfTwo.apply(a, a, False).sum(), a


def that_share_memory(x: torch.Tensor) -> Any:
    a = x * 2
    return OfTwo.apply(a[:2], a[1:], False).sum(), a


def with_holes(x: torch.Tensor) -> Any:
    a = x * 2
    return Stable.apply(a[:, ::2]).square().sum(), a.detach() + 1


def given_back(x: torch.Tensor) -> Any:
    a = x * 2
    return GivesBack.apply(a).sum(), a.detach() * 1


BESIDE_GRAPHS = [kept, one_for_both, that_share_memory, with_holes, given_back]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", IN_ONE_GRAPH + BESIDE_GRAPHS)
def test_results_arguments_and_gradients(program: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = argand.compile(program, backend=backend, fullgraph=program in IN_ONE_GRAPH)
    for seed in range(2):
        outcomes = []
        for call in (program, compiled):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, requires_grad=True)
            try:
                loss, *others = call(x)
                loss.backward()
            except RuntimeError as error:
                outcomes.append([str(error)[:40]])
                continue
            outcomes.append([loss, x.detach(), x.grad, *others])
        want, got = outcomes
        assert len(want) == len(got)
        for one, other in zip(want, got):
            assert one == other if isinstance(one, str) else torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_was_learned_of_one_call_holds_for_the_next() -> None:
    backend = CountingBackend()
    compiled = argand.compile(twice, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(torch.randn(3, 4, requires_grad=True))
    assert len(backend.graphs) == 1
