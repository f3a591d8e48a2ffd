"""Products: gradients that torch's own finds by looking at the data, in a few loops that look at none.

Torch's gradient of a cumulative product may take all pairs of elements where it is traced; that of a product is another
formula where there are zeros, with other values beside infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

_RUNNING: Final = (torch.cumprod, "cumprod")
RUNNING_PRODUCTS: Final = frozenset((*_RUNNING, torch.prod, "prod"))
"""Targets of calls."""


def stands_for(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What a call of `cumprod` or `prod` gives, for autograd above the tracer; None where it is recorded as it is."""
    given = {**dict(zip(("input", "dim", "keepdim"), args)), **kwargs}
    x, dim = given.pop("input", None), given.pop("dim", None)
    if not isinstance(x, torch.Tensor) or not x.dim():
        return None
    if not x.is_floating_point() and (target in _RUNNING or not x.is_complex()):
        return None
    if not (torch.is_grad_enabled() and x.requires_grad):
        return None
    of_all = dim is None and target not in _RUNNING
    keepdim = target not in _RUNNING and not of_all and given.pop("keepdim", False)
    if given or not (of_all or type(dim) is int):
        return None
    product: torch.Tensor = (_RunningProduct if target in _RUNNING else _Product).apply(x, dim, keepdim)
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:
        ctx.given = (dim, keepdim) if dim is not None else ()
        result = torch.prod(x, *ctx.given)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Without any zero, quotients; with zeros, the products of the others, which torch takes where it is traced;
        of two zeros in a product of all elements, nothing."""
        x, result = ctx.saved_tensors
        differentiated = torch.is_grad_enabled()
        with torch.enable_grad():
            product = torch.prod(x, *ctx.given)
            (others,) = torch.autograd.grad(product, x, grad, create_graph=differentiated)
        zeros = (x == 0).sum()
        if not ctx.given:
            others = torch.where(zeros > 1, 0.0, others)
        elif not ctx.given[1]:
            grad, result = grad.unsqueeze(ctx.given[0]), result.unsqueeze(ctx.given[0])
        return torch.where(zeros == 0, grad * (result / x).conj(), others), None, None


class _RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
        result = torch.cumprod(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """An element's gradient is the sum over the later products up to a zero, without it as a factor: before the
        first zero, a quotient; of that one, what is before it times the sum of what is after; behind it, zero."""
        x, result = ctx.saved_tensors
        dim, length = ctx.dim, x.shape[ctx.dim]
        if torch.is_grad_enabled():  # to be differentiated: what is zero there depends on the first zero
            return *torch.autograd.grad(torch.ops.aten.cumprod.default(x, dim), x, grad, create_graph=True), None, None
        if length == 1:
            return grad, None, None
        zero = x == 0
        zeros = zero.cumsum(dim)
        first, after = zero & (zeros == 1), ~zero & (zeros == 1)
        before = torch.cat([torch.ones_like(x.narrow(dim, 0, 1)), result.narrow(dim, 0, length - 1)], dim)
        later = torch.where(zeros == 1, grad, 0.0) * torch.where(after, x, 1.0).cumprod(dim)
        sums = torch.where(zeros == 0, grad * result, 0.0).flip(dim).cumsum(dim).flip(dim)
        return (
            torch.where(first, later.sum(dim, keepdim=True) * before, torch.where(zeros == 0, sums / x, 0.0)),
            None,
            None,
        )
