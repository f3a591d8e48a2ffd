"""Distances of all pairs of rows, and their gradients: sums over the columns, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

from argand.graph.sizes.expr import as_int
from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.lowerings.norms import meta
from argand.lower.lowerings.pointwise import float_power, refuse
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

Reduce = Callable[[str, Value], Value]
FEW_ROWS = 25  # up to which eager takes no product of matrices
BY_PRODUCT, NEVER_BY_PRODUCT = 1, 2  # modes of the op; 0 says that the number of rows decides


def _refuse_unusual(ctx: Context, x: Tensor, y: Tensor, p: float) -> None:
    refuse(ctx.device.type != "cpu", "distances on that device")
    refuse(x.dtype not in (torch.float32, torch.float64) or y.dtype is not x.dtype, "distances in that dtype")
    refuse(x.ndim < 2 or x.size[:-2] != y.size[:-2], "distances of batches of several sizes")
    refuse(any(as_int(extent) == 0 for extent in (*x.size, *y.size)), "distances of nothing")


def _columns(ctx: Context, x: Tensor) -> Tensor:
    """`x` with its columns laid out one after the other: what is read for many rows at a time."""
    size = (*x.size[:-2], x.size[-1], x.size[-2])
    turned = ctx.lazy(lambda ops, at: x.load(ops, (*at[:-2], at[-1], at[-2])), [x], val=meta(size, x.dtype))
    ctx.realise(turned)
    return turned


@lowers(aten._cdist_forward.default)
def cdist(ctx: Context, x: Tensor, y: Tensor, p: float, mode: int | None) -> Tensor:
    _refuse_unusual(ctx, x, y, p)
    rows = [as_int(each.size[-2]) for each in (x, y)]
    few = all(count is not None and count <= FEW_ROWS for count in rows)
    refuse(p == 2 and mode != NEVER_BY_PRODUCT and (mode == BY_PRODUCT or not few), "distances by a product")
    ctx.realise(x)
    columns = _columns(ctx, y)

    def body(ops: Recorder, reduce: Reduce, index: Index) -> Value:
        *lead, i, j, k = index
        apart = ops.sub(x.load(ops, (*lead, i, k)), columns.load(ops, (*lead, k, j)))
        if p == 2:
            return ops.sqrt(reduce("sum", ops.mul(apart, apart)))
        if p == 1:
            return reduce("sum", ops.abs(apart))
        if p == 0:
            return reduce("sum", ops.minimum(ops.ceil(ops.abs(apart)), ops.constant(1.0, x.dtype)))
        if p != inf:
            powers = reduce("sum", float_power(ops, ops.abs(apart), p, x.dtype))
            return float_power(ops, powers, 1 / p, x.dtype)
        number = ops.where(ops.isnan(apart), ops.constant(0.0, x.dtype), ops.abs(apart))  # eager passes over NaN
        return reduce("max", number)

    size = (*x.size[:-1], y.size[-2], x.size[-1])
    return ctx.reduce(size, [len(size) - 1], body, inputs=[x, columns])


@lowers(aten._cdist_backward.default)
def cdist_backward(ctx: Context, grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    _refuse_unusual(ctx, x, y, p)
    refuse(grad.size[:-2] != x.size[:-2], "distances of batches of several sizes")
    if p == 0:
        return ctx.lazy(lambda ops, index: ops.constant(0.0, x.dtype), [])
    for each in (x, y, grad, distance):
        ctx.realise(each)

    def body(ops: Recorder, reduce: Reduce, index: Index) -> Value:
        *lead, i, k, j = index
        apart = ops.sub(x.load(ops, (*lead, i, k)), y.load(ops, (*lead, j, k)))
        factor, far = grad.load(ops, (*lead, i, j)), distance.load(ops, (*lead, i, j))
        zero = ops.constant(0.0, x.dtype)
        if p == 2:
            none = ops.eq(far, zero)
            share = ops.truediv(ops.mul(factor, apart), ops.where(none, ops.constant(1.0, x.dtype), far))
            return reduce("sum", ops.where(none, zero, share))
        if p not in (1, inf):
            none = ops.logical_or(ops.eq(far, zero), ops.eq(apart, zero))
            one, other = (float_power(ops, each, p - 1, x.dtype) for each in (ops.abs(apart), far))
            share = ops.mul(factor, ops.truediv(one, other))
            return reduce("sum", ops.where(none, zero, ops.where(ops.lt(apart, zero), ops.neg(share), share)))
        up, down = (ops.to_dtype(test(apart, zero), x.dtype) for test in (ops.gt, ops.lt))
        share = ops.mul(factor, ops.where(ops.isnan(apart), apart, ops.sub(up, down)))
        if p == inf:
            gap = ops.sub(ops.abs(apart), far)
            chosen = ops.where(ops.isnan(gap), gap, ops.to_dtype(ops.eq(gap, zero), x.dtype))
            share = ops.mul(share, chosen)
        return reduce("sum", share)

    size = (*x.size, y.size[-2])
    return ctx.reduce(size, [len(size) - 1], body, inputs=[x, y, grad, distance])
