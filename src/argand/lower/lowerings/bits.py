"""Bits of integers: and, or, not, shifts."""

from __future__ import annotations

import torch

from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.elementwise import Operand, binary_op, pointwise
from argand.lower.lowerings.pointwise import refuse
from argand.lower.recorder import Recorder
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten


def _bitwise(name: str) -> Rule:
    def rule(ctx: Context, *operands: Operand) -> Tensor:
        is_bool = ctx.val.dtype is torch.bool
        op = name.replace("bitwise", "logical") if is_bool else name
        return pointwise(ctx, lambda ops, *values: ops.emit(op, values, values[0].dtype), operands)

    return rule


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _packet = getattr(aten, _name)
    lowers(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_bitwise(_name))
lowers(aten.bitwise_not.default)(_bitwise("bitwise_not"))


def _shift(name: str) -> Rule:
    def rule(ctx: Context, x: Operand, y: Operand) -> Tensor:
        dtype = ctx.val.dtype
        refuse(dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), "a shift of non-integers")
        info = torch.iinfo(dtype)
        for number in (x, y):
            if not isinstance(number, Tensor):
                beyond = not isinstance(number, int) or not info.min <= number <= info.max
                refuse(beyond or isinstance(number, bool), "a shift of or by a number beyond the dtype")
        if isinstance(y, int) and 0 <= y < info.bits:
            return pointwise(ctx, binary_op(name), [x, y])

        def operation(ops: Recorder, a: Value, b: Value) -> Value:
            """By less than nothing or by all bits and more is by all but one; of what is left the sign alone stays."""
            zero, most = ops.constant(0, a.dtype), ops.constant(info.bits - 1, a.dtype)
            outside = ops.logical_or(ops.lt(b, zero), ops.gt(b, most))
            shifted = ops.binary(name, a, ops.where(outside, most, b))
            return shifted if name == "rshift" and info.min < 0 else ops.where(outside, zero, shifted)

        return pointwise(ctx, operation, [x, y], cost=5)

    return rule


for _name, _packets in {
    "lshift": (aten.bitwise_left_shift, aten.__lshift__),
    "rshift": (aten.bitwise_right_shift, aten.__rshift__),
}.items():
    for _packet in _packets:
        for _overload in ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor"):
            if _overload in _packet.overloads():
                lowers(getattr(_packet, _overload))(_shift(_name))
