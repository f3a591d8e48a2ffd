"""Activation functions, computed in one go in the dtype of computation, as eager's kernels do."""

from __future__ import annotations

import math

import torch

from argand.ir.loops import Value
from argand.ir.operations import cost
from argand.lower.context import Context
from argand.lower.elementwise import pointwise
from argand.lower.lowerings.pointwise import formula, is_float, is_float_result, refuse, refuse_lane_by_lane
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


def _const(ops: Recorder, like: Value, number: float) -> Value:
    return ops.constant(number, like.dtype)


@lowers(aten.relu.default)
def relu(ctx: Context, x: Tensor) -> Tensor:
    refuse(x.dtype is torch.bool, "relu of bools")
    zero: Number = 0.0 if is_float(x) else 0
    # -0.0 stays: of two equal numbers maximum takes the second
    return pointwise(ctx, lambda ops, a: ops.maximum(ops.constant(zero, a.dtype), a), [x])


@lowers(aten.gelu.default)
def gelu(ctx: Context, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        refuse_lane_by_lane(ctx, "erf")

    def exact(ops: Recorder, a: Value) -> Value:
        inner = ops.add(ops.erf(ops.mul(a, _const(ops, a, math.sqrt(0.5)))), _const(ops, a, 1.0))
        return ops.mul(ops.mul(a, _const(ops, a, 0.5)), inner)

    def tanh(ops: Recorder, a: Value) -> Value:
        cube = ops.mul(ops.mul(a, a), a)
        inner = ops.add(a, ops.mul(_const(ops, a, 0.044715), cube))
        inner = ops.tanh(ops.mul(_const(ops, a, math.sqrt(2 / math.pi)), inner))
        return ops.mul(ops.mul(_const(ops, a, 0.5), a), ops.add(_const(ops, a, 1.0), inner))

    return pointwise(ctx, tanh if approximate == "tanh" else exact, [x], cost=cost("gelu"))


@formula(aten.silu.default, cost=cost("silu"))
def silu(ops: Recorder, a: Value) -> Value:
    one = _const(ops, a, 1.0)
    return ops.truediv(a, ops.add(one, ops.exp(ops.neg(a))))


formula(aten.mish.default, cost=cost("mish"))(lambda ops, a: ops.mul(a, ops.tanh(ops.log1p(ops.exp(a)))))


@formula(aten.softplus.default, cost=cost("softplus"))
def softplus(ops: Recorder, a: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    scaled = ops.mul(a, _const(ops, a, float(beta)))
    soft = ops.truediv(ops.log1p(ops.exp(scaled)), _const(ops, a, float(beta)))
    return ops.where(ops.gt(scaled, _const(ops, a, float(threshold))), a, soft)


@formula(aten.leaky_relu.default, cost=3)
def leaky_relu(ops: Recorder, a: Value, slope: Number = 0.01) -> Value:
    return ops.where(ops.gt(a, _const(ops, a, 0.0)), a, ops.mul(a, _const(ops, a, float(slope))))


@formula(aten.elu.default, cost=18)
def elu(ops: Recorder, a: Value, alpha: Number = 1.0, scale: Number = 1.0, input_scale: Number = 1.0) -> Value:
    low = ops.mul(ops.expm1(ops.mul(a, _const(ops, a, float(input_scale)))), _const(ops, a, float(alpha * scale)))
    high = ops.mul(a, _const(ops, a, float(scale)))
    # not `gt`: eager sends nan through expm1, which gives nan either way
    return ops.where(ops.lt(a, _const(ops, a, 0.0)), low, high)


@formula(aten.celu.default, cost=18)
def celu(ops: Recorder, a: Value, alpha: Number = 1.0) -> Value:
    return elu(ops, a, alpha, 1.0, 1.0 / float(alpha))


@lowers(aten.hardtanh.default)
def hardtanh(ctx: Context, x: Tensor, low: Number = -1, high: Number = 1) -> Tensor:
    refuse(not is_float_result(ctx), "hardtanh of integers")

    def operation(ops: Recorder, a: Value, lower: Value, upper: Value) -> Value:
        return ops.minimum(upper, ops.maximum(lower, a))

    return pointwise(ctx, operation, [x, float(low), float(high)], cost=2)


def _relu6(ops: Recorder, a: Value) -> Value:
    shifted = ops.add(a, _const(ops, a, 3.0))
    return ops.minimum(ops.maximum(shifted, _const(ops, a, 0.0)), _const(ops, a, 6.0))


formula(aten.hardsigmoid.default, cost=7)(lambda ops, a: ops.truediv(_relu6(ops, a), _const(ops, a, 6.0)))


@formula(aten.hardswish.default, cost=8)
def hardswish(ops: Recorder, a: Value) -> Value:
    return ops.truediv(ops.mul(a, _relu6(ops, a)), _const(ops, a, 6.0))


@lowers(aten.threshold.default)
def threshold(ctx: Context, x: Tensor, limit: Number, value: Number) -> Tensor:

    return pointwise(ctx, lambda ops, a, bound, other: ops.where(ops.le(a, bound), other, a), [x, limit, value], cost=2)


@lowers(aten.threshold_backward.default)
def threshold_backward(ctx: Context, grad: Tensor, x: Tensor, limit: Number) -> Tensor:
    def operation(ops: Recorder, g: Value, a: Value, bound: Value) -> Value:
        return ops.where(ops.le(a, bound), ops.constant(0, g.dtype), g)

    refuse(grad.dtype is not x.dtype, "threshold_backward of two dtypes")
    return pointwise(ctx, operation, [grad, x, limit], cost=2)


formula(aten.tanh_backward.default, cost=3)(
    lambda ops, grad, out: ops.mul(grad, ops.sub(_const(ops, out, 1.0), ops.mul(out, out)))
)


@formula(aten.sigmoid_backward.default, cost=3)
def sigmoid_backward(ops: Recorder, grad: Value, out: Value) -> Value:
    return ops.mul(ops.mul(grad, ops.sub(_const(ops, out, 1.0), out)), out)


@lowers(aten.gelu_backward.default)
def gelu_backward(ctx: Context, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        refuse_lane_by_lane(ctx, "erf")

    def exact(ops: Recorder, g: Value, a: Value) -> Value:
        half, one = _const(ops, a, 0.5), _const(ops, a, 1.0)
        cdf = ops.mul(half, ops.add(one, ops.erf(ops.mul(a, _const(ops, a, math.sqrt(0.5))))))
        density = ops.exp(ops.mul(ops.mul(a, a), _const(ops, a, -0.5)))
        pdf = ops.mul(density, _const(ops, a, 1 / math.sqrt(2 * math.pi)))
        return ops.mul(g, ops.add(cdf, ops.mul(a, pdf)))

    def tanh(ops: Recorder, g: Value, a: Value) -> Value:
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        half, one = _const(ops, a, 0.5), _const(ops, a, 1.0)
        square = ops.mul(a, a)
        inner = ops.mul(_const(ops, a, beta), ops.add(a, ops.mul(_const(ops, a, kappa), ops.mul(square, a))))
        bend = ops.tanh(inner)
        left = ops.mul(half, ops.add(one, bend))
        slope = ops.mul(_const(ops, a, beta), ops.add(one, ops.mul(_const(ops, a, 3 * kappa), square)))
        right = ops.mul(ops.mul(ops.mul(half, a), ops.sub(one, ops.mul(bend, bend))), slope)
        return ops.mul(g, ops.add(left, right))

    return pointwise(ctx, tanh if approximate == "tanh" else exact, [grad, x], cost=36)
