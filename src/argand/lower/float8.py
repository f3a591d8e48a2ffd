"""Floats of eight bits: loops read and write them as bytes, and compute with the numbers that these stand for."""

from __future__ import annotations

import functools
import math
from typing import Final

import torch

from argand.graph.sizes.expr import ZERO
from argand.graph.sizes.symbolic import like_meta
from argand.ir.loops import TensorRef, Value
from argand.lower.context import Context
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering
from argand.lower.tensor import Index, Tensor
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A sign, an exponent and a mantissa.

    Arguments:
        mantissa: bits of the mantissa.
        bias: what is subtracted from the exponent.
        end: the float32 from which on no number is.
        infinities: it has some.
    """

    mantissa: int
    bias: int
    end: float
    infinities: bool


FORMATS: Final = {
    torch.float8_e4m3fn: Format(3, 7, 480.0, False),
    torch.float8_e5m2: Format(2, 15, 65536.0, True),
}
_NAN: Final = 0x7F


@functools.cache
def _beyond(dtype: torch.dtype) -> int:
    """The byte of what is too large: an infinity, a NaN, or, in later versions of torch, the largest number."""
    byte: int = torch.tensor(1e9, device="cpu").to(dtype).view(torch.uint8).item()
    return byte


def converted(ctx: Context, x: Tensor) -> Tensor:
    """`x` in the node's dtype, where one of the two is of eight bits."""
    dtype: torch.dtype = ctx.val.dtype
    if ctx.device.type != "cpu" or x.device != ctx.device:
        raise NoLowering(f"loops on {ctx.device} do not compute with {x.dtype} or {dtype}")
    source = _as_bytes(ctx, x) if x.dtype in FORMATS else x

    def load(ops: Recorder, index: Index) -> Value:
        value = source.load(ops, index)
        if x.dtype is dtype:
            return value
        if x.dtype in FORMATS:
            value = _decoded(ops, value, FORMATS[x.dtype])
        if dtype not in FORMATS:
            return ops.to_dtype(value, dtype)
        return _encoded(ops, ops.to_dtype(value, torch.float32), FORMATS[dtype], _beyond(dtype))

    if dtype not in FORMATS:
        return ctx.lazy(load, [source], cost=8)
    stored = ctx.lazy(load, [source], cost=16, val=like_meta(ctx.val, torch.uint8))
    buffer = ctx.new_buffer(stored.size, stored.stride, dtype, x.device)
    ctx.store(stored, TensorRef(buffer.name, stored.size, buffer.stride, ZERO, torch.uint8), creates=True)
    return ctx.from_ref(ctx.ref_of(buffer), dtype, x.device)


def _as_bytes(ctx: Context, x: Tensor) -> Tensor:
    ref = ctx.realise(x)
    whole = TensorRef(ref.buffer, ref.size, ref.stride, ref.offset, torch.uint8)
    return ctx.from_ref(whole, torch.uint8, x.device)


def _decoded(ops: Recorder, byte: Value, form: Format) -> Value:
    """The float32 of a byte: a float16 with the same bits in front, its exponent moved."""
    bits = ops.to_dtype(byte, torch.int32)
    rest, sign = (_of(ops, "bitwise_and", bits, mask) for mask in (0x7F, 0x80))
    raised = ops.binary("bitwise_or", _of(ops, "lshift", rest, 10 - form.mantissa), _of(ops, "lshift", sign, 8))
    half = ops.bitcast(ops.to_dtype(raised, torch.int16), torch.float16)
    value = ops.to_dtype(half, torch.float32)
    if form.infinities:
        return value
    value = ops.mul(value, ops.constant(2.0 ** (15 - form.bias), torch.float32))
    nan = ops.constant(math.nan, torch.float32)
    return ops.where(ops.eq(rest, ops.constant(_NAN, torch.int32)), nan, value)


def _encoded(ops: Recorder, value: Value, form: Format, beyond: int) -> Value:
    """The byte of a float32, rounded to even."""
    cut = 23 - form.mantissa  # bits that go
    bits = ops.bitcast(value, torch.int32)
    size = _of(ops, "bitwise_and", bits, 0x7FFFFFFF)
    odd = _of(ops, "bitwise_and", _of(ops, "rshift", size, cut), 1)
    moved = _of(ops, "add", size, (1 << cut - 1) - 1 - ((127 - form.bias) << 23))
    normal = _of(ops, "rshift", ops.add(moved, odd), cut)
    # Of less than the least normal number the last bit is that of a number that is added, and the addition rounds.
    least = 1 - form.bias
    unit = ops.constant(2.0 ** (least - form.mantissa + 23), torch.float32)
    tiny = ops.sub(ops.bitcast(ops.add(ops.abs(value), unit), torch.int32), ops.bitcast(unit, torch.int32))
    limit = ops.constant((127 + least) << 23, torch.int32)
    finite = ops.where(ops.lt(size, limit), tiny, normal)
    largest = ops.constant(beyond, torch.int32)
    end = ops.bitcast(ops.constant(form.end, torch.float32), torch.int32)
    kept = ops.where(ops.lt(size, end), ops.binary("minimum", finite, largest), largest)
    infinite = ops.constant(0x7F800000, torch.int32)
    kept = ops.where(ops.gt(size, infinite), ops.constant(_NAN, torch.int32), kept)
    sign = _of(ops, "bitwise_and", _of(ops, "rshift", bits, 24), 0x80)
    return ops.to_dtype(ops.binary("bitwise_or", kept, sign), torch.uint8)


def _of(ops: Recorder, name: str, value: Value, number: int) -> Value:
    return ops.binary(name, value, ops.constant(number, torch.int32))
