"""Losses, and gradients that reach lowering whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.ir.loops import Value
from argand.lower.context import Context, math_dtype
from argand.lower.elementwise import pointwise
from argand.lower.lowerings.norms import inverse_root, meta, per_channel
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.reductions import all_or, before_moments, count_of, mean_of, reduced, size_as
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # ATen's codes for the reduction of a loss


@lowers(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(
    ctx: Context,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    dtype: torch.dtype = ctx.val.dtype
    operands = [x, target, *(each for each in (weight, pos_weight) if each is not None)]
    refuse(reduction != NONE and dtype is not math_dtype(dtype), "a pooled loss in reduced precision")
    refuse(x.size != target.size, "a loss of tensors that broadcast")
    refuse(any(each.dtype is not dtype for each in operands), "a loss of several dtypes")

    def operation(ops: Recorder, a: Value, b: Value, *rest: Value) -> Value:
        one, zero = ops.constant(1.0, a.dtype), ops.constant(0.0, a.dtype)
        # log(sigmoid(a)) without overflow
        log_sigmoid = ops.sub(ops.minimum(a, zero), ops.log1p(ops.exp(ops.neg(ops.abs(a)))))
        if pos_weight is not None:
            log_sigmoid = ops.mul(log_sigmoid, ops.add(ops.mul(ops.sub(rest[-1], one), b), one))
        loss = ops.sub(ops.mul(ops.sub(one, b), a), log_sigmoid)
        return loss if weight is None else ops.mul(loss, rest[0])

    each = pointwise(ctx, operation, operands, cost=30, val=ctx.val if reduction == NONE else meta(x.size, dtype))
    if reduction == NONE:
        return each
    if reduction == MEAN:
        return mean_of(ctx, each, range(each.ndim), ctx.val)
    return reduced(ctx, each, range(each.ndim), "sum", dtype=dtype)


def _softmax_backward(log: bool) -> Rule:
    def rule(ctx: Context, grad: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
        refuse(not is_float(grad), "softmax of integers")
        math = math_dtype(out.dtype)
        dims = all_or(dim, out.ndim)
        before_moments(ctx, grad)
        before_moments(ctx, out)
        row = meta([out.size[d] * 0 + 1 if d in dims else out.size[d] for d in range(out.ndim)], math)

        def weigh(ops: Recorder, value: Value, index: Index) -> Value:
            return ops.mul(value, ops.to_dtype(out.load(ops, index), math))

        others = [] if log else [out]
        total = reduced(ctx, grad, dims, "sum", dtype=math, before=None if log else weigh, val=row, others=others)

        def operation(ops: Recorder, g: Value, y: Value, s: Value) -> Value:
            if log:
                return ops.sub(g, ops.mul(ops.exp(y), s))
            return ops.mul(y, ops.sub(g, s))

        return pointwise(ctx, operation, [grad, out, total], common=math, cost=15 if log else 2)

    return rule


lowers(aten._softmax_backward_data.default)(_softmax_backward(False))
lowers(aten._log_softmax_backward_data.default)(_softmax_backward(True))


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """-grad times the class's weight (over the total weight, for the mean) where the class is the target's, else 0."""
    refuse(x.ndim not in (1, 2, 4) or not is_float(x), "nll_loss of that shape")
    math = math_dtype(x.dtype)
    dtype = x.dtype
    channel = 0 if x.ndim == 1 else 1

    def load(ops: Recorder, index: Index) -> Value:
        row = (*index[:channel], *index[channel + 1 :]) if target.ndim else ()
        wanted = ops.to_dtype(target.load(ops, row), torch.int64)
        hit = ops.eq(wanted, ops.index_expr(index[channel], torch.int64))
        hit = ops.logical_and(hit, ops.ne(wanted, ops.constant(ignore_index, torch.int64)))
        each = ops.to_dtype(grad.load(ops, row if grad.ndim else ()), math)
        if weight is not None:
            each = ops.mul(each, ops.to_dtype(weight.load(ops, (index[channel],)), math))
        if reduction == MEAN:
            each = ops.truediv(each, ops.to_dtype(total_weight.load(ops, ()), math))
        return ops.to_dtype(ops.where(hit, ops.neg(each), ops.constant(0.0, math)), dtype)

    weights = [] if weight is None else [weight]
    return ctx.lazy(load, [target, grad, total_weight, *weights], cost=6, count=9)


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(ctx: Context, grad: Tensor, mask: Tensor, scale: Number) -> Tensor:
    def operation(ops: Recorder, g: Value, kept: Value) -> Value:
        return ops.mul(ops.mul(g, ops.to_dtype(kept, g.dtype)), ops.constant(float(scale), g.dtype))

    return pointwise(ctx, operation, [grad, mask], keep=(1,), cost=3)


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_scale: Tensor | None,
    train: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "batch norm of integers or nothing")
    math = math_dtype(x.dtype)
    dims = [0, *range(2, x.ndim)]
    before_moments(ctx, x)
    before_moments(ctx, grad)
    x_val, weight_val, bias_val = ctx.val
    vector = meta([x.size[1]], math)
    if train:
        mean, scale = save_mean, save_scale
    else:
        mean = running_mean
        refuse(running_var is None, "batch norm without statistics")
        scale = inverse_root(ctx, running_var or grad, eps, math)
    refuse(mean is None or scale is None, "batch norm without statistics")
    center, spread = (per_channel(ctx, v, x.ndim) for v in (mean, scale) if v is not None)
    whole = meta(x.size, math)

    hat = pointwise(ctx, _normal, [x, center, spread], common=math, cost=2, val=whole)

    total = reduced(ctx, grad, dims, "sum", dtype=math, val=vector)
    tilted = reduced(ctx, grad, dims, "sum", dtype=math, before=_weighed(hat), val=vector, others=[hat])
    operands = [grad, spread] if weight is None else [grad, spread, per_channel(ctx, weight, x.ndim)]
    grad_x = None
    if wanted[0] and not train:
        grad_x = pointwise(ctx, _product, operands, common=math, cost=2, val=x_val)
    elif wanted[0]:
        count = count_of(x, dims)

        def per_element(summed: Tensor) -> Tensor:
            """A part of a channel's sum, in memory: nothing is divided for each element."""

            def divided(ops: Recorder, s: Value) -> Value:
                return ops.truediv(s, size_as(ops, count, math))

            part = pointwise(ctx, divided, [summed], common=math, val=vector)
            ctx.realise(part)
            return per_channel(ctx, part, x.ndim)

        flat, tilt = per_element(total), per_element(tilted)

        def operation(ops: Recorder, g: Value, f: Value, h: Value, t: Value, *factors: Value) -> Value:
            return _product(ops, ops.sub(ops.sub(g, f), ops.mul(h, t)), *factors)

        grad_x = pointwise(ctx, operation, [grad, flat, hat, tilt, *operands[1:]], common=math, cost=9, val=x_val)
    grad_weight = pointwise(ctx, _product, [tilted], common=math, val=weight_val) if wanted[1] else None
    grad_bias = pointwise(ctx, _product, [total], common=math, val=bias_val) if wanted[2] else None
    return grad_x, grad_weight, grad_bias


def _normal(ops: Recorder, a: Value, mean: Value, scale: Value) -> Value:
    return ops.mul(ops.sub(a, mean), scale)


def _weighed(factor: Tensor) -> Callable[[Recorder, Value, Index], Value]:
    """What is done to the elements before they are summed: each is multiplied by that of `factor`."""
    return lambda ops, value, index: ops.mul(value, factor.load(ops, index))


def _product(ops: Recorder, value: Value, *factors: Value) -> Value:
    for factor in factors:
        value = ops.mul(value, factor)
    return value


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[Any],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Any, Any, Any]:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "layer norm of integers or nothing")
    math = math_dtype(x.dtype)
    outer = x.ndim - len(shape)
    dims, rows = list(range(outer, x.ndim)), list(range(outer))
    before_moments(ctx, x)
    before_moments(ctx, grad)
    ctx.realise(mean)
    ctx.realise(scale)
    x_val, weight_val, bias_val = ctx.val
    whole = meta(x.size, math)
    row = meta([x.size[d] * 0 + 1 if d in dims else x.size[d] for d in range(x.ndim)], math)

    hat = pointwise(ctx, _normal, [x, mean, scale], common=math, cost=2, val=whole)
    operands = [grad] if weight is None else [grad, weight]
    slope = pointwise(
        ctx, lambda ops, *v: v[0] if len(v) == 1 else ops.mul(v[0], v[1]), operands, common=math, val=whole
    )
    grad_x = grad_weight = grad_bias = None
    if wanted[0]:
        flat = mean_of(ctx, slope, dims, row)
        tilt = mean_of(
            ctx, pointwise(ctx, lambda ops, a, b: ops.mul(a, b), [slope, hat], common=math, val=whole), dims, row
        )

        def operation(ops: Recorder, d: Value, h: Value, f: Value, t: Value, s: Value) -> Value:
            return ops.mul(s, ops.sub(ops.sub(d, f), ops.mul(h, t)))

        grad_x = pointwise(ctx, operation, [slope, hat, flat, tilt, scale], common=math, cost=4, val=x_val)
    if wanted[1] and weight_val is not None:
        grad_weight = reduced(ctx, grad, rows, "sum", dtype=math, before=_weighed(hat), val=weight_val, others=[hat])
    if wanted[2] and bias_val is not None:
        grad_bias = reduced(ctx, grad, rows, "sum", dtype=math, val=bias_val)
    return grad_x, grad_weight, grad_bias
