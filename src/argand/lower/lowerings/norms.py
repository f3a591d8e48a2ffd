"""Normalisation layers: layer, group and batch norm, and their gradients with respect to the input.

Moments take two passes over a row, which the scheduler fuses into one kernel while the row is in cache: as accurate as
eager's one-pass update, and without a division per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.sizes.expr import Expr
from argand.graph.sizes.symbolic import MetaTensor, contiguous_meta
from argand.ir.loops import Value
from argand.lower.context import Context, math_dtype
from argand.lower.elementwise import pointwise
from argand.lower.layout import contiguous_stride
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.reductions import before_moments, count_of, mean_of, reduced, size_as, variance
from argand.lower.lowerings.views import reshaped
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten


def meta(size: Sequence[Expr], dtype: torch.dtype) -> MetaTensor:
    """Contiguous metadata."""
    return contiguous_meta(size, dtype)


def view_as(ctx: Context, x: Tensor, size: Sequence[Expr]) -> Tensor:
    """`x` reshaped, contiguously."""
    return reshaped(ctx, x, tuple(size), contiguous_stride(tuple(size)))


def moments(ctx: Context, x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) over `dims`, which stay as size one, in the dtype of computation."""
    math = math_dtype(x.dtype)
    row = meta([x.size[d] * 0 + 1 if d in dims else x.size[d] for d in range(x.ndim)], math)
    before_moments(ctx, x)
    mean = mean_of(ctx, x, dims, row)
    ctx.realise(mean)
    count = count_of(x, dims)

    def before(ops: Recorder, value: Value, index: Index) -> Value:
        center = mean.load(ops, tuple([index[d] * 0 if d in dims else index[d] for d in range(x.ndim)]))
        away = ops.sub(value, center)
        return ops.mul(away, away)

    def after(ops: Recorder, total: Value) -> Value:
        spread = ops.truediv(total, size_as(ops, count, math))
        return ops.rsqrt(ops.add(spread, ops.constant(eps, math)))

    scale = reduced(ctx, x, dims, "sum", dtype=math, before=before, after=after, val=row, others=[mean])
    ctx.realise(scale)
    return mean, scale


def stats(ctx: Context, x: Tensor, val: Any) -> Tensor:
    """Saved moments with the size and dtype that the op returns them in."""
    dtype: torch.dtype = val.dtype
    viewed = reshaped(ctx, x, ctx.sizes(val.shape), ctx.sizes(val.stride()))
    return pointwise(ctx, lambda ops, a: a, [viewed], common=x.dtype, val=val) if x.dtype is not dtype else viewed


# --- batch norm


def per_channel(ctx: Context, x: Tensor, ndim: int) -> Tensor:
    """A vector of one number per channel, ready to broadcast to (N, C, ...)."""
    return view_as(ctx, x, [*x.size, *[ctx.expr(1)] * (ndim - 2)])


def normalised(
    ctx: Context, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None, val: Any
) -> Tensor:
    """x * (scale * weight) + (bias - mean * scale * weight), as eager's kernel: the brackets once per channel, and each
    sum rounded once, so that a relu behind it cuts where eager's does."""
    math = math_dtype(x.dtype)
    vector = meta(mean.size, math)
    operands = [scale] if weight is None else [scale, weight]
    factor = pointwise(
        ctx, lambda ops, *v: ops.mul(v[0], v[1]) if len(v) == 2 else v[0], operands, common=math, val=vector, cost=4
    )

    def shift(ops: Recorder, center: Value, slope: Value, *rest: Value) -> Value:
        return ops.fma(ops.neg(center), slope, rest[0] if rest else ops.constant(0.0, math))

    operands = [mean, factor] if bias is None else [mean, factor, bias]
    offset = pointwise(ctx, shift, operands, common=math, val=vector, cost=4)
    ctx.realise_together([factor, offset])
    factor, offset = per_channel(ctx, factor, x.ndim), per_channel(ctx, offset, x.ndim)
    return pointwise(ctx, lambda ops, a, f, o: ops.fma(a, f, o), [x, factor, offset], common=math, cost=2, val=val)


def inverse_root(ctx: Context, var: Tensor, eps: float, math: torch.dtype) -> Tensor:
    """1 / sqrt(var + eps)"""

    def invert(ops: Recorder, a: Value) -> Value:
        return ops.rsqrt(ops.add(a, ops.constant(eps, math)))

    return pointwise(ctx, invert, [var], common=math, val=meta(var.size, math), cost=6)


def with_running_stats(
    ctx: Context, x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, eps: float, val: Any
) -> Tensor:
    """Batch norm by given statistics."""
    scale = inverse_root(ctx, var, eps, math_dtype(x.dtype))
    return normalised(ctx, x, mean, scale, weight, bias, val)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    ctx: Context, x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Any:
    return batch_norm(ctx, x, weight, bias, mean, var, False, momentum, eps)


@lowers(aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default)
def batch_norm(
    ctx: Context,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    refuse(not is_float(x) or x.ndim < 2, "batch norm of integers or vectors")
    refuse(any(extent == 0 for extent in x.size), "batch norm of nothing")
    out_val, mean_val, scale_val, *running_vals = ctx.val
    math = math_dtype(x.dtype)
    if not training:
        refuse(mean is None or var is None, "batch norm without statistics")
        refuse(uses(ctx, 1) or uses(ctx, 2), "saved statistics of a batch norm that uses its running ones")
        out = with_running_stats(ctx, x, weight, bias, _given(mean), _given(var), eps, out_val)
        nothing = ctx.lazy(lambda ops, index: ops.constant(0.0, math), [], val=mean_val)
        every: tuple[Any, ...] = (out, nothing, nothing, mean, var)
        return every[: len(ctx.val)]
    refuse(mean is not None and not running_vals, "a batch norm that updates its arguments")
    dims = [0, *range(2, x.ndim)]
    center, scale = moments(ctx, x, dims, eps)
    vector = [x.size[1]]
    flat_center, flat_scale = view_as(ctx, center, vector), view_as(ctx, scale, vector)
    out = normalised(ctx, x, flat_center, flat_scale, weight, bias, out_val)
    saved = (stats(ctx, flat_center, mean_val), stats(ctx, flat_scale, scale_val))
    if not running_vals:
        return (out, *saved)
    refuse(mean is None or var is None, "batch norm without running statistics")
    spread = variance(ctx, x, dims, 1.0, meta(center.size, math), root=False, mean=center)
    new_mean = _blended(ctx, _given(mean), flat_center, momentum, running_vals[0])
    new_var = _blended(ctx, _given(var), view_as(ctx, spread, vector), momentum, running_vals[1])
    return (out, *saved, new_mean, new_var)


def _given(x: Tensor | None) -> Tensor:
    refuse(x is None, "batch norm without running statistics")
    assert x is not None  # for mypy: refuse has raised
    return x


def _blended(ctx: Context, old: Tensor, new: Tensor, momentum: float, val: Any) -> Tensor:
    def operation(ops: Recorder, a: Value, b: Value) -> Value:
        weight, keep = ops.constant(momentum, a.dtype), ops.constant(1 - momentum, a.dtype)
        return ops.add(ops.mul(weight, b), ops.mul(keep, a))

    return pointwise(ctx, operation, [old, new], common=math_dtype(old.dtype), cost=3, val=val)


def uses(ctx: Context, position: int) -> bool:
    """Whether result `position` of the node is used."""
    return ctx.node is None or any(user.args[1] == position for user in ctx.node.users if len(user.args) == 2)


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ctx: Context, x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm(ctx, x, weight, bias, None, None, True, momentum, eps)
