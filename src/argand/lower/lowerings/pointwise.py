"""Pointwise arithmetic, comparisons, logic and selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from argand.ir.loops import Value
from argand.ir.operations import COMPARISONS, FLOAT_FUNCTIONS, LANE_BY_LANE, cost
from argand.lower import float8
from argand.lower.context import Context, math_dtype
from argand.lower.elementwise import Operand, Operation, binary_op, pointwise, result_type, unary_op
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering, Rule, lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


def is_float(x: Operand) -> bool:
    return x.dtype.is_floating_point if isinstance(x, Tensor) else isinstance(x, float)


def refuse(condition: bool, reason: str) -> None:
    """Leave the node to ATen when `condition` holds."""
    if condition:
        raise NoLowering(reason)


FEW = 256
"""Elements; of so few doubles, a call of ATen costs more than computing them one by one."""


def refuse_lane_by_lane(ctx: Context, name: str) -> None:
    """Leave a function of many doubles to ATen, which has it in vectors, where argand's kernels have not."""
    if name in LANE_BY_LANE and ctx.val.dtype is torch.float64:
        target = ctx.targets(ctx.device)
        count = ctx.val.numel()
        few = isinstance(count, int) and count <= FEW
        refuse(target is not None and target.host_memory and not few, f"{name} of doubles is faster in the library")


def of_floats(ctx: Context, operation: Operation, operands: list[Any], cost: int) -> Tensor:
    """`operation` on tensors of floats of one dtype."""
    refuse(not is_float_result(ctx), "a function or gradient of integers")
    refuse(len({operand.dtype for operand in operands}) > 1, "a gradient of tensors of two dtypes")
    return pointwise(ctx, operation, operands, cost=cost)


def formula(*targets: Any, cost: int) -> Callable[[Operation], Operation]:
    """The lowering of floats that are all of one dtype: the decorated function gets the value of each tensor, then the
    numbers of the call."""

    def register(operation: Operation) -> Operation:
        def rule(ctx: Context, *given: Any, **options: Any) -> Tensor:
            tensors = [each for each in given if isinstance(each, Tensor)]
            numbers = given[len(tensors) :]
            return of_floats(ctx, lambda ops, *values: operation(ops, *values, *numbers, **options), tensors, cost)

        lowers(*targets)(rule)
        return operation

    return register


# --- tables: ATen op -> loop op
ROUNDING = ("floor", "ceil", "trunc")


def _unary(name: str) -> Rule:
    def rule(ctx: Context, x: Tensor) -> Tensor:
        refuse(ctx.val.dtype is torch.bool, f"{name} of bools")
        refuse_lane_by_lane(ctx, name)
        return pointwise(ctx, unary_op(name), [x], cost=cost(name))

    return rule


def _rounding(name: str) -> Rule:
    def rule(ctx: Context, x: Tensor) -> Tensor:
        if not is_float(x):
            return pointwise(ctx, lambda ops, a: a, [x])
        return pointwise(ctx, unary_op(name), [x])

    return rule


def _compare(name: str) -> Rule:
    def rule(ctx: Context, x: Operand, y: Operand) -> Tensor:
        common = result_type(ctx, 0, 1)
        return pointwise(ctx, lambda ops, a, b: ops.compare(name, a, b), [x, y], common=common)

    return rule


for _name in FLOAT_FUNCTIONS:
    lowers(getattr(aten, _name).default)(_unary(_name))
for _name in ROUNDING:
    lowers(getattr(aten, _name).default)(_rounding(_name))
lowers(aten.round.default)(_rounding("round"))
lowers(aten.neg.default)(_unary("neg"))
for _name in COMPARISONS:
    _packet = getattr(aten, _name)
    lowers(_packet.Tensor, _packet.Scalar)(_compare(_name))


@lowers(aten.abs.default)
def abs_(ctx: Context, x: Tensor) -> Tensor:
    refuse(x.dtype is torch.bool, "abs of bools")
    if x.dtype is torch.uint8:
        return pointwise(ctx, lambda ops, a: a, [x])
    return pointwise(ctx, unary_op("abs"), [x])


@lowers(aten.sign.default, aten.sgn.default)
def sign(ctx: Context, x: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return pointwise(ctx, lambda ops, a: a, [x])
    if is_float(x):  # eager's sign of nan is 0, of -0.0 is 0

        def operation(ops: Recorder, a: Value) -> Value:
            zero = ops.constant(0.0, a.dtype)
            up = ops.to_dtype(ops.gt(a, zero), a.dtype)
            return ops.sub(up, ops.to_dtype(ops.lt(a, zero), a.dtype))

        return pointwise(ctx, operation, [x], cost=3)
    return pointwise(ctx, unary_op("sign"), [x])


@lowers(aten.frac.default)
def frac(ctx: Context, x: Tensor) -> Tensor:
    refuse(not is_float(x), "frac of integers")
    return pointwise(ctx, lambda ops, a: ops.sub(a, ops.trunc(a)), [x], cost=2)


# --- arithmetic


def _add(ops: Recorder, a: Value, b: Value) -> Value:
    return ops.logical_or(a, b) if a.dtype is torch.bool else ops.add(a, b)


def _scaled(ctx: Context, alpha: Number, first: Operand, second: Operand, *, subtract: bool = False) -> Tensor:
    """first + alpha * second, or first - alpha * second."""
    refuse(subtract and ctx.val.dtype is torch.bool, "subtraction of bools")
    if alpha == 1:
        operation = binary_op("sub") if subtract else _add
        return pointwise(ctx, operation, [first, second])
    refuse(ctx.val.dtype is torch.bool, "scaled addition of bools")

    def scaled(ops: Recorder, a: Value, b: Value, scale: Value) -> Value:
        return ops.binary("sub" if subtract else "add", a, ops.mul(scale, b))

    return pointwise(ctx, scaled, [first, second, alpha], cost=2)


lowers(aten.add.Tensor, aten.add.Scalar)(lambda ctx, x, y, alpha=1: _scaled(ctx, alpha, x, y))
lowers(aten.sub.Tensor, aten.sub.Scalar)(lambda ctx, x, y, alpha=1: _scaled(ctx, alpha, x, y, subtract=True))
lowers(aten.rsub.Tensor, aten.rsub.Scalar)(lambda ctx, x, y, alpha=1: _scaled(ctx, alpha, y, x, subtract=True))


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(ctx: Context, x: Operand, y: Operand) -> Tensor:
    operation = binary_op("logical_and") if ctx.val.dtype is torch.bool else binary_op("mul")
    return pointwise(ctx, operation, [x, y], exact=(1,))


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(ctx: Context, x: Operand, y: Operand) -> Tensor:
    return pointwise(ctx, binary_op("truediv"), [x, y], cost=cost("truediv"), exact=(1,))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Context, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(ctx, x, y)
    if rounding_mode == "floor":
        return floor_divide(ctx, x, y)
    if is_float_result(ctx):
        operation = lambda ops, a, b: ops.trunc(ops.truediv(a, b))  # noqa: E731 (one of two short operations)
        return pointwise(ctx, operation, [x, y], cost=5, exact=(1,))
    return _integer_division(ctx, "truncdiv", x, y)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(ctx: Context, x: Operand, y: Operand) -> Tensor:
    if is_float_result(ctx):
        return pointwise(ctx, float_floordiv, [x, y], cost=20, exact=(1,))
    return _integer_division(ctx, "floordiv", x, y)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(ctx: Context, x: Operand, y: Operand) -> Tensor:
    if is_float_result(ctx):
        return pointwise(ctx, float_remainder, [x, y], cost=20)
    return _integer_division(ctx, "remainder", x, y)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(ctx: Context, x: Operand, y: Operand) -> Tensor:
    if is_float_result(ctx):
        return pointwise(ctx, binary_op("fmod"), [x, y], cost=cost("fmod"))
    return _integer_division(ctx, "fmod", x, y)


def is_float_result(ctx: Context) -> bool:
    return bool(ctx.val.dtype.is_floating_point)


def _integer_division(ctx: Context, name: str, x: Operand, y: Operand) -> Tensor:
    """A divisor that may be 0 is checked; eager's kernels for GPUs don't, and what they give is the library's."""
    refuse(ctx.val.dtype is torch.bool, "division of bools")
    if isinstance(y, Tensor):
        refuse(ctx.device.type != "cpu", "integer division by a value not known safe")

        def divided(ops: Recorder, a: Value, b: Value) -> Value:
            return ops.binary(name, a, b if b.op == "constant" and b.args[0] else ops.divisor(b))

        return pointwise(ctx, divided, [x, y], cost=cost(name))
    refuse(not isinstance(y, int) or isinstance(y, bool) or y in (0, -1), "integer division by a value not known safe")
    info = torch.iinfo(ctx.val.dtype)
    refuse(isinstance(y, int) and not info.min <= y <= info.max, "a divisor beyond the dtype")
    return pointwise(ctx, binary_op(name), [x, y], cost=cost(name))


def float_remainder(ops: Recorder, a: Value, b: Value) -> Value:
    """fmod, moved to the divisor's sign."""
    rest = ops.fmod(a, b)
    zero = ops.constant(0.0, a.dtype)
    differs = ops.logical_xor(ops.lt(b, zero), ops.lt(rest, zero))
    return ops.where(ops.logical_and(ops.ne(rest, zero), differs), ops.add(rest, b), rest)


def float_floordiv(ops: Recorder, a: Value, b: Value) -> Value:
    """Python's float //: exact from fmod, then rounded to the nearest integer below."""
    zero, half, one = (ops.constant(number, a.dtype) for number in (0.0, 0.5, 1.0))
    rest = ops.fmod(a, b)
    quotient = ops.truediv(ops.sub(a, rest), b)
    differs = ops.logical_xor(ops.lt(b, zero), ops.lt(rest, zero))
    quotient = ops.where(ops.logical_and(ops.ne(rest, zero), differs), ops.sub(quotient, one), quotient)
    floored = ops.floor(quotient)
    floored = ops.where(ops.gt(ops.sub(quotient, floored), half), ops.add(floored, one), floored)
    plain = ops.truediv(a, b)
    floored = ops.where(ops.ne(quotient, zero), floored, ops.copysign(zero, plain))
    return ops.where(ops.eq(b, zero), plain, floored)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Context, x: Tensor, exponent: Number) -> Tensor:
    if not is_float_result(ctx):
        refuse(isinstance(exponent, float) or not 0 <= exponent <= 8, "an integer power that is not small")
        refuse(ctx.val.dtype is torch.bool, "a power of bools")
        return pointwise(ctx, lambda ops, a: _power_by_products(ops, a, int(exponent)), [x], cost=4)
    refuse(not is_float(x), "a float power of integers")
    if _pow_cost(exponent) == cost("pow"):
        refuse_lane_by_lane(ctx, "pow")
    return pointwise(ctx, lambda ops, a: float_power(ops, a, float(exponent), x.dtype), [x], cost=_pow_cost(exponent))


def _pow_cost(exponent: Number) -> int:
    few = {2.0: 1, 3.0: 2, 4.0: 2, 1.0: 1, 0.0: 1, 1.5: 6, 2.5: 6, -1.5: 8, -2.5: 8}
    return few.get(float(exponent), 4 if abs(exponent) in (0.5, 1, 2) else cost("pow"))


def _power_by_products(ops: Recorder, a: Value, exponent: int) -> Value:
    result = ops.constant(1, a.dtype)
    for _ in range(exponent):
        result = ops.mul(result, a)
    return result


def float_power(ops: Recorder, a: Value, exponent: float, storage: torch.dtype) -> Value:
    """a ** exponent, with the special cases of eager's kernel; it rounds each product to the storage dtype."""

    def rounded(value: Value) -> Value:
        return ops.to_dtype(ops.to_dtype(value, storage), a.dtype)

    if exponent == 0:
        return ops.constant(1.0, a.dtype)
    if exponent == 1:
        return a
    if exponent == 2:
        return ops.mul(a, a)
    if exponent == 3:
        return ops.mul(rounded(ops.mul(a, a)), a)
    if exponent == 0.5:
        return ops.sqrt(a)
    if exponent == -0.5:
        return ops.rsqrt(a)
    if exponent == -1:
        return ops.reciprocal(a)
    if exponent == -2:
        return ops.reciprocal(rounded(ops.mul(a, a)))
    if exponent == 4:
        square = ops.mul(a, a)
        return ops.mul(square, square)
    if abs(exponent) in (1.5, 2.5):
        return _half_power(ops, a, exponent)
    return ops.pow(a, ops.constant(exponent, a.dtype))


def _half_power(ops: Recorder, a: Value, exponent: float) -> Value:
    """By a square root and products or quotients, none of which leaves the range before the result does: 2 ulp."""
    power = ops.sqrt(a)
    if exponent < 0:
        power = ops.reciprocal(power)
    for _ in range(int(abs(exponent))):
        power = ops.mul(power, a) if exponent > 0 else ops.truediv(power, a)
    ends = ops.constant(0.0 if exponent < 0 else math.inf, a.dtype)
    return ops.where(ops.eq(a, ops.constant(-math.inf, a.dtype)), ends, ops.abs(power))  # of -0.0 it is no negative


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(ctx: Context, x: Operand, y: Operand) -> Tensor:
    refuse(not is_float_result(ctx), "an integer power by a tensor")
    refuse_lane_by_lane(ctx, "pow")
    return pointwise(ctx, binary_op("pow"), [x, y], cost=cost("pow"))


@lowers(aten.maximum.default)
def maximum(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    name = "logical_or" if ctx.val.dtype is torch.bool else "maximum"
    return pointwise(ctx, binary_op(name), [x, y])


@lowers(aten.minimum.default)
def minimum(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    name = "logical_and" if ctx.val.dtype is torch.bool else "minimum"
    return pointwise(ctx, binary_op(name), [x, y])


def _ignoring_nan(name: str) -> Rule:
    def rule(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
        if not is_float_result(ctx):
            return (maximum if name == "maximum" else minimum)(ctx, x, y)

        second = ctx.val.dtype is torch.bfloat16  # of two zeros eager takes the first, of bfloat16 the second

        def operation(ops: Recorder, a: Value, b: Value) -> Value:
            better = ops.binary(name, *((a, b) if second else (b, a)))
            return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, better))

        return pointwise(ctx, operation, [x, y], cost=5)

    return rule


lowers(aten.fmax.default)(_ignoring_nan("maximum"))
lowers(aten.fmin.default)(_ignoring_nan("minimum"))


@lowers(aten.atan2.default)
def atan2(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    refuse_lane_by_lane(ctx, "atan2")
    return pointwise(ctx, binary_op("atan2"), [x, y], cost=cost("atan2"))


lowers(aten.copysign.Tensor, aten.copysign.Scalar)(lambda ctx, x, y: pointwise(ctx, binary_op("copysign"), [x, y]))


def _addc(divide: bool) -> Rule:
    def rule(ctx: Context, x: Tensor, a: Tensor, b: Tensor, *, value: Number = 1) -> Tensor:
        refuse(not is_float_result(ctx), "addcmul or addcdiv of integers")
        refuse(ctx.val.dtype is not math_dtype(ctx.val.dtype) and value != 1, "scaled addcmul in reduced precision")

        def operation(ops: Recorder, base: Value, left: Value, right: Value, scale: Value) -> Value:
            if value != 1:
                left = ops.mul(scale, left)
            return ops.add(base, ops.binary("truediv" if divide else "mul", left, right))

        return pointwise(ctx, operation, [x, a, b, value], cost=6 if divide else 3)

    return rule


lowers(aten.addcmul.default)(_addc(False))
lowers(aten.addcdiv.default)(_addc(True))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(ctx: Context, start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    refuse(not is_float_result(ctx), "lerp of integers")

    def operation(ops: Recorder, a: Value, b: Value, w: Value) -> Value:
        # the formula that is exact at the nearer end
        one, half = ops.constant(1.0, a.dtype), ops.constant(0.5, a.dtype)
        span = ops.sub(b, a)
        low = ops.add(a, ops.mul(w, span))
        high = ops.sub(b, ops.mul(span, ops.sub(one, w)))
        return ops.where(ops.lt(ops.abs(w), half), low, high)

    return pointwise(ctx, operation, [start, end, weight], cost=8, exact=(2,))


# --- predicates and logic


def _predicate(operation: Any, of_integers: bool = False) -> Rule:
    def rule(ctx: Context, x: Tensor) -> Tensor:
        if not is_float(x):
            return pointwise(ctx, lambda ops: ops.constant(of_integers, torch.bool), [])
        return pointwise(ctx, operation, [x], common=x.dtype)

    return rule


lowers(aten.isnan.default)(_predicate(lambda ops, a: ops.isnan(a)))
lowers(aten.isinf.default)(_predicate(lambda ops, a: ops.isinf(a)))
lowers(aten.isfinite.default)(_predicate(lambda ops, a: ops.isfinite(a), True))
lowers(aten.isposinf.default)(_predicate(lambda ops, a: ops.eq(a, ops.constant(math.inf, a.dtype))))
lowers(aten.isneginf.default)(_predicate(lambda ops, a: ops.eq(a, ops.constant(-math.inf, a.dtype))))


@lowers(aten.signbit.default)
def signbit(ctx: Context, x: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return pointwise(ctx, lambda ops: ops.constant(False, torch.bool), [])
    return pointwise(ctx, lambda ops, a: ops.signbit(a), [x], common=x.dtype)


def _logical(name: str) -> Rule:
    def rule(ctx: Context, *operands: Tensor) -> Tensor:
        common = result_type(ctx, *range(len(operands)))

        def operation(ops: Recorder, *values: Value) -> Value:
            # what rounds or wraps around to zero in the dtype that eager converts to is false
            rounded = [
                ops.to_dtype(v, common) if v.dtype.is_floating_point == common.is_floating_point else v for v in values
            ]
            flags = [ops.to_dtype(value, torch.bool) for value in rounded]
            return ops.emit(name, tuple(flags), torch.bool)

        return pointwise(ctx, operation, operands, keep=range(len(operands)))

    return rule


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    lowers(getattr(aten, _name).default)(_logical(_name))


# --- selection


@lowers(aten.where.self)
def where(ctx: Context, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    def operation(ops: Recorder, mask: Value, a: Value, b: Value) -> Value:
        return ops.where(ops.to_dtype(mask, torch.bool), a, b)

    return pointwise(ctx, operation, [condition, x, y], keep=(0,))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ctx: Context, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return where(ctx, mask, value, x)


def _ordered(given: Operand, bound: Value, value: Value) -> tuple[Value, Value]:
    """Of two zeros the second one is the result: the value beside a number, the bound where that is a tensor."""
    return (value, bound) if isinstance(given, Tensor) else (bound, value)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: Context, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    refuse(ctx.val.dtype is torch.bool, "clamp of bools")
    bounds = [bound for bound in (low, high) if bound is not None]
    for bound in bounds:
        refuse(isinstance(bound, float) and bound != bound, "clamp to nan")

    def operation(ops: Recorder, a: Value, *limits: Value) -> Value:
        left = list(limits)
        if low is not None:
            a = ops.maximum(*_ordered(low, left.pop(0), a))
        return ops.minimum(*_ordered(high, left.pop(0), a)) if high is not None else a

    return pointwise(ctx, operation, [x, *bounds], cost=2)


lowers(aten.clamp_min.default, aten.clamp_min.Tensor)(lambda ctx, x, low: clamp(ctx, x, low, None))
lowers(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda ctx, x, high: clamp(ctx, x, None, high))


@lowers(aten.nan_to_num.default)
def nan_to_num(
    ctx: Context, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not is_float(x):
        return pointwise(ctx, lambda ops, a: a, [x])
    info = torch.finfo(x.dtype)
    above = info.max if posinf is None else posinf
    below = info.min if neginf is None else neginf

    def operation(ops: Recorder, a: Value) -> Value:
        inf, minus_inf = ops.constant(float("inf"), a.dtype), ops.constant(float("-inf"), a.dtype)
        result = ops.where(ops.eq(a, inf), ops.constant(above, a.dtype), a)
        result = ops.where(ops.eq(a, minus_inf), ops.constant(below, a.dtype), result)
        return ops.where(ops.isnan(a), ops.constant(nan or 0.0, a.dtype), result)

    return pointwise(ctx, operation, [x], cost=6)


# --- conversions and copies


@lowers(aten.clone.default)
def clone(ctx: Context, x: Tensor, *, memory_format: Any = None) -> Tensor:
    return copied(ctx, x)


def copied(ctx: Context, x: Tensor) -> Tensor:
    """`x` with the node's layout, as a new lazy tensor."""
    return pointwise(ctx, lambda ops, a: a, [x], keep=(0,), cost=0)


@lowers(aten._to_copy.default)
def to_copy(ctx: Context, x: Tensor, **kwargs: Any) -> Tensor:
    refuse(x.device != ctx.device, "a copy between devices")
    return converted(ctx, x)


lowers(torch.ops.prims.convert_element_type.default)(lambda ctx, x, dtype: converted(ctx, x))


def converted(ctx: Context, x: Tensor) -> Tensor:
    """`x` in the node's dtype."""
    dtype: torch.dtype = ctx.val.dtype
    if x.dtype in float8.FORMATS or dtype in float8.FORMATS:
        return float8.converted(ctx, x)
    return pointwise(ctx, lambda ops, a: a, [x], keep=(0,), cost=0 if x.dtype is dtype else 1)


@lowers(aten.copy.default)
def copy(ctx: Context, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    refuse(source.device != x.device, "a copy between devices")
    return pointwise(ctx, lambda ops, a: a, [source], keep=(0,))
