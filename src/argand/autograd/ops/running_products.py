"""Cumulative products: their gradient in a few loops. Torch's own may take all pairs of elements where it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

RUNNING_PRODUCTS: Final = frozenset((torch.cumprod, "cumprod"))
"""Targets of calls."""


def stands_for(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What a call of `cumprod` gives, for autograd above the tracer; None where it is recorded as it is."""
    given = {**dict(zip(("input", "dim"), args)), **kwargs}
    x, dim = given.pop("input", None), given.pop("dim", None)
    if given or not isinstance(x, torch.Tensor) or not x.is_floating_point() or type(dim) is not int or not x.dim():
        return None
    if not (torch.is_grad_enabled() and x.requires_grad):
        return None
    product: torch.Tensor = _RunningProduct.apply(x, dim)
    return product


class _RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        result = torch.cumprod(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """An element's gradient is the sum over the later products, without it as a factor: before the first zero, a
        quotient; of the first zero, over products in which there is one in its place; behind it, zero."""
        x, result = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated: what is zero there depends on the first zero
            return *torch.autograd.grad(torch.ops.aten.cumprod.default(x, ctx.dim), x, grad, create_graph=True), None
        zero = x == 0
        zeros = zero.cumsum(ctx.dim)
        first = zero & (zeros == 1)
        others = torch.where(first, 1.0, x).cumprod(ctx.dim)
        before, at = (_from_end(grad * product, ctx.dim) for product in (result, others))
        return torch.where(first, at, torch.where(zeros == 0, before / x, 0.0)), None


def _from_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)
