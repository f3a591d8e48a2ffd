"""Gradients of activation functions and losses, in one go in the dtype of computation, as eager's kernels do."""

from __future__ import annotations

import math

import torch

from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.elementwise import Operation, pointwise
from argand.lower.lowerings.pointwise import formula, of_floats, refuse
from argand.lower.lowerings.training import MEAN
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


def _const(ops: Recorder, like: Value, number: Number) -> Value:
    return ops.constant(float(number), like.dtype)


def _outside(ops: Recorder, x: Value, low: Number, high: Number) -> Value:
    """True where eager lets the gradient through: not within [low, high], nan included."""
    within = ops.logical_and(ops.ge(x, _const(ops, x, low)), ops.le(x, _const(ops, x, high)))
    return ops.logical_not(within)


@lowers(aten.elu_backward.default)
def elu_backward(
    ctx: Context, grad: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Tensor
) -> Tensor:
    low = float(alpha) * float(scale)

    def operation(ops: Recorder, g: Value, a: Value) -> Value:
        steep = ops.mul(g, _const(ops, a, input_scale))
        if is_result:
            bent = ops.mul(steep, ops.add(a, _const(ops, a, low)))
        else:
            bent = ops.mul(ops.mul(steep, _const(ops, a, low)), ops.exp(ops.mul(a, _const(ops, a, input_scale))))
        return ops.where(ops.le(a, _const(ops, a, 0)), bent, ops.mul(g, _const(ops, a, scale)))

    return of_floats(ctx, operation, [grad, x], 4 if is_result else 18)


@formula(aten.leaky_relu_backward.default, cost=3)
def leaky_relu_backward(ops: Recorder, g: Value, a: Value, slope: Number, is_result: bool) -> Value:
    return ops.where(ops.gt(a, _const(ops, a, 0)), g, ops.mul(g, _const(ops, a, slope)))


@formula(aten.hardtanh_backward.default, cost=3)
def hardtanh_backward(ops: Recorder, g: Value, a: Value, low: Number, high: Number) -> Value:
    flat = ops.logical_or(ops.le(a, _const(ops, a, low)), ops.ge(a, _const(ops, a, high)))
    return ops.where(flat, _const(ops, a, 0), g)


@formula(aten.hardsigmoid_backward.default, cost=4)
def hardsigmoid_backward(ops: Recorder, g: Value, a: Value) -> Value:
    sixth = float(torch.tensor(1 / 6))  # of doubles too, eager multiplies by a float
    sloped = ops.logical_and(ops.gt(a, _const(ops, a, -3)), ops.lt(a, _const(ops, a, 3)))
    return ops.where(sloped, ops.mul(g, _const(ops, a, sixth)), _const(ops, a, 0))


@formula(aten.hardswish_backward.default, cost=8)
def hardswish_backward(ops: Recorder, g: Value, a: Value) -> Value:
    bent = ops.mul(g, ops.add(ops.truediv(a, _const(ops, a, 3)), _const(ops, a, 0.5)))
    upper = ops.where(ops.lt(a, _const(ops, a, 3)), bent, g)
    return ops.where(ops.le(a, _const(ops, a, -3)), _const(ops, a, 0), upper)


@formula(aten.softplus_backward.default, cost=20)
def softplus_backward(ops: Recorder, g: Value, a: Value, beta: Number, threshold: Number) -> Value:
    scaled = ops.mul(a, _const(ops, a, beta))
    e = ops.exp(scaled)
    soft = ops.truediv(ops.mul(g, e), ops.add(e, _const(ops, a, 1)))
    return ops.where(ops.gt(scaled, _const(ops, a, threshold)), g, soft)


@formula(aten.hardshrink.default, cost=4)
def hardshrink(ops: Recorder, a: Value, limit: Number = 0.5) -> Value:
    return ops.where(_outside(ops, a, -limit, limit), a, _const(ops, a, 0))


@formula(aten.hardshrink_backward.default, aten.softshrink_backward.default, cost=4)
def shrink_backward(ops: Recorder, g: Value, a: Value, limit: Number) -> Value:
    return ops.where(_outside(ops, a, -limit, limit), g, _const(ops, a, 0))


@formula(aten.softshrink.default, cost=5)
def softshrink(ops: Recorder, a: Value, limit: Number = 0.5) -> Value:
    bound = _const(ops, a, limit)
    flat = ops.mul(a, _const(ops, a, 0))  # nan stays nan
    lower = ops.where(ops.lt(a, ops.neg(bound)), ops.add(a, bound), flat)
    return ops.where(ops.gt(a, bound), ops.sub(a, bound), lower)


@formula(aten.log_sigmoid_backward.default, cost=8)
def log_sigmoid_backward(ops: Recorder, g: Value, a: Value, e: Value) -> Value:
    """`kept` is exp(-|x|)."""
    one = _const(ops, a, 1)
    part = ops.truediv(e, ops.add(one, e))
    return ops.mul(g, ops.where(ops.lt(a, _const(ops, a, 0)), ops.sub(one, part), part))


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(ctx: Context, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    x_val, weight_val = ctx.val
    refuse(not x_val.dtype.is_floating_point or len({grad.dtype, x.dtype, weight.dtype}) > 1, "prelu of two dtypes")

    def by_x(ops: Recorder, g: Value, a: Value, w: Value) -> Value:
        return ops.where(ops.gt(a, _const(ops, a, 0)), g, ops.mul(w, g))

    def by_weight(ops: Recorder, g: Value, a: Value) -> Value:
        return ops.where(ops.gt(a, _const(ops, a, 0)), _const(ops, a, 0), ops.mul(a, g))

    return (
        pointwise(ctx, by_x, [grad, x, weight], cost=3, val=x_val),
        pointwise(ctx, by_weight, [grad, x], cost=3, val=weight_val),
    )


# --- logit


def _eps(number: Number | None) -> float:
    return -1.0 if number is None else float(number)


@lowers(aten.logit.default)
def logit(ctx: Context, x: Tensor, eps: Number | None = None) -> Tensor:
    bound = _eps(eps)
    refuse(x.dtype in (torch.float16, torch.bfloat16), "logit in reduced precision")

    def operation(ops: Recorder, a: Value) -> Value:
        one = _const(ops, a, 1)
        if bound >= 0:
            a = ops.where(ops.lt(a, _const(ops, a, bound)), _const(ops, a, bound), a)
            a = ops.where(ops.gt(a, _const(ops, a, 1 - bound)), _const(ops, a, 1 - bound), a)
        return ops.log(ops.truediv(a, ops.sub(one, a)))

    return of_floats(ctx, operation, [x], 24)


@formula(aten.logit_backward.default, cost=9)
def logit_backward(ops: Recorder, g: Value, a: Value, eps: Number | None = None) -> Value:
    low = max(_eps(eps), 0.0)
    within = ops.logical_and(ops.ge(a, _const(ops, a, low)), ops.le(a, _const(ops, a, 1 - low)))
    slope = ops.truediv(g, ops.mul(a, ops.sub(_const(ops, a, 1), a)))
    return ops.where(within, slope, _const(ops, a, math.nan if _eps(eps) < 0 else 0.0))


# --- losses


def _weight_of_each(ops: Recorder, g: Value, count: int, reduction: int) -> Value:
    """The gradient of one element's loss; the mean divides it by their number."""
    return ops.mul(g, _const(ops, g, 1 / count)) if reduction == MEAN else g


def _loss_gradient(ctx: Context, operation: Operation, tensors: list[Tensor], reduction: int, cost: int) -> Tensor:
    """A loss's gradient by its first tensor; `operation(ops, grad of the element, x, target)`."""
    count = 1
    for extent in ctx.val.shape:
        refuse(not isinstance(extent, int), "a loss of a size that is not known")
        count *= extent
    refuse(count == 0 or any(x.size != tensors[1].size for x in tensors[1:]), "a loss of tensors that broadcast")

    def whole(ops: Recorder, g: Value, *rest: Value) -> Value:
        return operation(ops, _weight_of_each(ops, g, count, reduction), *rest)

    return of_floats(ctx, whole, list(tensors), cost)


@lowers(aten.mse_loss_backward.default)
def mse_loss_backward(ctx: Context, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, b: Value) -> Value:
        return ops.mul(ops.mul(_const(ops, a, 2), ops.sub(a, b)), g)

    return _loss_gradient(ctx, operation, [grad, x, target], reduction, 4)


@lowers(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    ctx: Context, grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: Number
) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, b: Value) -> Value:
        away = ops.sub(a, b)
        bound = _const(ops, a, beta)
        near = ops.truediv(ops.mul(away, g), bound) if beta else _const(ops, a, 0)
        far = ops.where(ops.ge(away, bound), g, near)
        return ops.where(ops.le(away, ops.neg(bound)), ops.neg(g), far)

    refuse(not beta, "smooth_l1_loss without a smooth part")
    return _loss_gradient(ctx, operation, [grad, x, target], reduction, 10)


@lowers(aten.huber_loss_backward.default)
def huber_loss_backward(ctx: Context, grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: Number) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, b: Value) -> Value:
        away = ops.sub(a, b)
        bound = _const(ops, a, delta)
        steep = ops.mul(g, bound)
        far = ops.where(ops.ge(away, bound), steep, ops.mul(away, g))
        return ops.where(ops.le(away, ops.neg(bound)), ops.neg(steep), far)

    return _loss_gradient(ctx, operation, [grad, x, target], reduction, 10)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(ctx: Context, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, b: Value) -> Value:
        e = ops.exp(ops.neg(ops.mul(b, a)))
        return ops.neg(ops.mul(ops.truediv(ops.mul(b, e), ops.add(e, _const(ops, a, 1))), g))

    return _loss_gradient(ctx, operation, [grad, x, target], reduction, 20)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    ctx: Context, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, b: Value, *weights: Value) -> Value:
        spread = ops.mul(ops.sub(_const(ops, a, 1), a), a)
        gradient = ops.truediv(ops.mul(g, ops.sub(a, b)), ops.maximum(spread, _const(ops, a, 1e-12)))
        return ops.mul(gradient, weights[0]) if weights else gradient

    tensors = [grad, x, target] if weight is None else [grad, x, target, weight]
    return _loss_gradient(ctx, operation, tensors, reduction, 12)
