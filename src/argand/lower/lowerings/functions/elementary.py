"""Functions that a few elementary ones make, with what eager's kernels give for infinities and NaNs."""

from __future__ import annotations

import math

import torch

from argand.ir.loops import Value
from argand.ir.operations import cost
from argand.lower.context import Context
from argand.lower.elementwise import pointwise
from argand.lower.lowerings.pointwise import formula, is_float, refuse
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


@formula(aten.logaddexp.default, cost=2 * cost("exp"))
def logaddexp(ops: Recorder, a: Value, b: Value) -> Value:
    """The larger, and what the smaller one adds to it."""
    rest = ops.log1p(ops.exp(ops.neg(ops.abs(ops.sub(a, b)))))
    return _of_unlike(ops, a, b, ops.add(ops.maximum(a, b), rest))


@formula(aten.logaddexp2.default, cost=2 * cost("exp2"))
def logaddexp2(ops: Recorder, a: Value, b: Value) -> Value:
    """The same in powers of 2."""
    rest = ops.log1p(ops.unary("exp2", ops.neg(ops.abs(ops.sub(a, b)))))
    rest = ops.mul(rest, ops.constant(1 / math.log(2), a.dtype))
    return _of_unlike(ops, a, b, ops.add(ops.maximum(a, b), rest))


def _of_unlike(ops: Recorder, a: Value, b: Value, value: Value) -> Value:
    """`value`, which two equal infinities have no difference for."""
    return ops.where(ops.logical_and(ops.isinf(a), ops.eq(a, b)), a, value)


@formula(aten.hypot.default, cost=cost("sqrt") + 4)
def hypot(ops: Recorder, a: Value, b: Value) -> Value:
    """In doubles, whose squares of floats are finite; doubles are scaled where their squares are not."""
    x, y = (ops.to_dtype(value, torch.float64) for value in (a, b))
    infinite = ops.constant(math.inf, a.dtype)
    up = down = None
    if a.dtype is torch.float64:
        largest = ops.maximum(ops.abs(x), ops.abs(y))
        one, big, small = (ops.constant(number, torch.float64) for number in (1.0, 2.0**600, 2.0**-600))
        far = ops.gt(largest, ops.constant(2.0**500, torch.float64))
        near = ops.lt(largest, ops.constant(2.0**-450, torch.float64))
        up, down = (ops.where(far, p, ops.where(near, q, one)) for p, q in ((small, big), (big, small)))
        x, y = ops.mul(x, up), ops.mul(y, up)
    root = ops.sqrt(ops.add(ops.mul(x, x), ops.mul(y, y)))
    root = ops.to_dtype(root if down is None else ops.mul(root, down), a.dtype)
    return ops.where(ops.logical_or(ops.isinf(a), ops.isinf(b)), infinite, root)


@formula(aten.special_entr.default, cost=cost("log") + 4)
def entr(ops: Recorder, a: Value) -> Value:
    """-a log(a); 0 of 0, -inf of negative numbers."""
    zero, less = ops.constant(0.0, a.dtype), ops.constant(-math.inf, a.dtype)
    rest = ops.where(ops.isnan(a), a, ops.where(ops.eq(a, zero), zero, less))
    return ops.where(ops.gt(a, zero), ops.mul(ops.neg(a), ops.log(a)), rest)


@lowers(aten.round.decimals)
def round_decimals(ctx: Context, x: Tensor, *, decimals: int) -> Tensor:
    """Scaled by a power of 10, rounded and scaled back."""
    refuse(not is_float(x) or x.dtype.itemsize < 4, "round to decimals of integers or halves")
    scale = float(torch.tensor(10.0 ** abs(decimals), dtype=x.dtype))

    def operation(ops: Recorder, a: Value) -> Value:
        by = ops.constant(scale, a.dtype)
        if decimals == 0:
            return ops.round(a)
        return (
            ops.truediv(ops.round(ops.mul(a, by)), by) if decimals > 0 else ops.mul(ops.round(ops.truediv(a, by)), by)
        )

    return pointwise(ctx, operation, [x], cost=cost("truediv") + 2)
