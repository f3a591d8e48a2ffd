"""Special functions: of floats and on processors, operations of their own (`SPECIAL_FUNCTIONS`)."""

from __future__ import annotations

import torch

from argand.ir.operations import SPECIAL_FUNCTIONS, cost
from argand.lower.context import Context, math_dtype
from argand.lower.elementwise import pointwise, unary_op
from argand.lower.lowerings.pointwise import refuse
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


def _special(name: str) -> Rule:
    def rule(ctx: Context, x: Tensor) -> Tensor:
        target = ctx.targets(ctx.device)
        refuse(target is not None and not target.host_memory, f"{name} on this device is the library's")
        refuse(math_dtype(ctx.val.dtype) is not torch.float32, f"{name} of doubles is the library's")
        return pointwise(ctx, unary_op(name), [x], cost=cost(name))

    return rule


for _name in SPECIAL_FUNCTIONS:
    _operator = getattr(aten, _name, None) or getattr(aten, f"special_{_name}", None)
    if _operator is not None:
        lowers(_operator.default)(_special(_name))
lowers(aten.i0.default)(_special("modified_bessel_i0"))
lowers(aten.special_i1.default)(_special("modified_bessel_i1"))


@lowers(aten.polygamma.default)
def polygamma(ctx: Context, order: int, x: Tensor) -> Tensor:
    """The first two, digamma and what is its gradient."""
    refuse(order not in (0, 1), "polygamma of an order above one is the library's")
    return _special("trigamma" if order else "digamma")(ctx, x)
