"""Questions and small objects of torch that programs of libraries ask for in passing: no break, eager's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x  # not what autograd would find


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "is_fx_tracing": lambda x: x if torch.fx._symbolic_trace.is_fx_tracing() else x + 1,
    "is_in_onnx_export": lambda x: x if torch.onnx.is_in_onnx_export() else x + 1,
    "tracing": lambda x: x if torch.jit.is_tracing() or torch.jit.is_scripting() else x + 1,
    "shape as a tensor": lambda x: torch._shape_as_tensor(x) + x.detach().sum().round(),
    "apply of an instance": lambda x: Squared().apply(x),
    "function of arrays": lambda x: torch.compiler.wrap_numpy(np.sin)(x.detach()) + x,
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    results = []
    for run in (PROGRAMS[name], argand.compile(PROGRAMS[name], backend="aot_eager", fullgraph=True)):
        x = torch.full((3,), 2.0, requires_grad=True)
        out = run(x)
        grads = torch.autograd.grad(out.sum(), x) if out.requires_grad else ()
        results.append((out, *grads))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_classes_of_numbers_are_dtypes(kind: type) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.tensor([1], dtype=kind), torch.zeros(2, dtype=kind), x.new_ones(2, dtype=kind)]
        return [*made, x.to(kind), x.to(dtype=kind), x.sum(dtype=kind), torch.ones_like(x, dtype=kind)]

    x = torch.arange(3.0)
    compiled = argand.compile(f, backend="aot_eager", fullgraph=True)
    for want, got in zip(f(x), compiled(x), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


def test_tangents_are_asked_for() -> None:
    """kornia asks before it writes in place; in a dual level the answer is another one."""

    def f(x: torch.Tensor) -> torch.Tensor:
        dual = torch.autograd.forward_ad.unpack_dual(x)
        return dual.primal * 2 if dual.tangent is None else dual.tangent * 3

    x = torch.ones(2)
    assert torch.equal(argand.compile(f, fullgraph=True, backend="eager")(x), f(x))
    compiled = argand.compile(f, backend="eager")
    assert torch.equal(compiled(x), f(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.full((2,), 5.0))
        assert torch.equal(compiled(dual), f(dual))
    assert torch.equal(compiled(x), f(x))
