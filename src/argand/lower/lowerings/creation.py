"""Tensors made from nothing: constants, ranges, and their shapes."""

from __future__ import annotations

from typing import Any

import torch

from argand.graph.sizes.expr import Expr
from argand.ir.loops import Value
from argand.lower.context import LOOP_DTYPES, Context, math_dtype
from argand.lower.elementwise import number_in, pointwise, reader, symbolic_number
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering, lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten
prims = torch.ops.prims


def filled(ctx: Context, value: Any) -> Tensor:
    """The node's tensor filled with a number, a size, or a 0-d tensor."""
    dtype: torch.dtype = ctx.val.dtype
    if isinstance(value, Tensor):
        return pointwise(ctx, lambda ops, a: a, [value])
    if isinstance(value, Expr):
        return ctx.lazy(lambda ops, index: ops.to_dtype(symbolic_number(ctx, ops, value, dtype), dtype), [], cost=0)
    if not isinstance(value, (int, float, bool)):
        raise NoLowering(f"a fill with a value of type {type(value).__name__}")
    if dtype not in LOOP_DTYPES:
        raise NoLowering(f"a fill of {dtype}")
    number = number_in(value, dtype)
    return ctx.lazy(lambda ops, index: ops.constant(number, dtype), [], cost=0)


lowers(aten.full.default)(lambda ctx, size, value, **kwargs: filled(ctx, value))
lowers(aten.full_like.default)(lambda ctx, x, value, **kwargs: filled(ctx, value))
lowers(aten.fill.Scalar, aten.fill.Tensor)(lambda ctx, x, value: filled(ctx, value))


# nobody may rely on what an empty tensor holds: zeros cost least, as nothing reads them from memory
@lowers(aten.zero.default, aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)
def zeros(ctx: Context, *args: Any, **kwargs: Any) -> Tensor:
    return filled(ctx, 0)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(ctx: Context, *args: Any, **kwargs: Any) -> Tensor:
    start, _, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)
    return _progression(ctx, start, step)


def _progression(ctx: Context, start: Any, step: Any) -> Tensor:
    dtype: torch.dtype = ctx.val.dtype
    if any(isinstance(part, Expr) and not part.free.isdisjoint(ctx.floats) for part in (start, step)):
        raise NoLowering("a range of floats that are known when the kernel is called")
    if not dtype.is_floating_point:  # eager takes both as integers, whatever it counted with
        start, step = (int(part) if isinstance(part, float) else part for part in (start, step))
    if not isinstance(start, float) and not isinstance(step, float):
        first, gap = ctx.expr(int(start) if isinstance(start, bool) else start), ctx.expr(step)
        return ctx.lazy(lambda ops, index: ops.index_expr(first + gap * index[0], dtype), [])

    def load(ops: Recorder, index: Index) -> Value:
        wide = torch.float64  # eager computes in double and rounds once
        steps = ops.mul(ops.index_expr(index[0], wide), ops.constant(float(step), wide))
        return ops.to_dtype(ops.add(ops.constant(float(start), wide), steps), dtype)

    return ctx.lazy(load, [], cost=3, count=4)


@lowers(aten.linspace.default)
def linspace(ctx: Context, start: Any, end: Any, steps: Any, **kwargs: Any) -> Tensor:
    """From both ends to the middle, as eager does, in double, by steps of the result's dtype."""
    dtype: torch.dtype = ctx.val.dtype
    if not all(isinstance(part, (int, float)) for part in (start, end, steps)):
        raise NoLowering("evenly spaced numbers between ends that are known when the kernel is called")
    if dtype not in (torch.float32, torch.float64):
        raise NoLowering("evenly spaced numbers that eager computes in that dtype")
    wide = torch.float64
    first, last = (torch.tensor(float(part), dtype=dtype).item() for part in (start, end))
    gap = torch.tensor(last - first, dtype=dtype).div(max(steps - 1, 1)).item()

    def load(ops: Recorder, index: Index) -> Value:
        at = ops.index_expr(index[0], wide)
        rest = ops.sub(ops.constant(float(steps - 1), wide), at)
        up = ops.add(ops.constant(first, wide), ops.mul(at, ops.constant(gap, wide)))
        down = ops.sub(ops.constant(last, wide), ops.mul(rest, ops.constant(gap, wide)))
        near = ops.lt(at, ops.constant(float(max(steps // 2, 1)), wide))
        return ops.to_dtype(ops.where(near, up, down), dtype)

    return ctx.lazy(load, [], cost=5, count=8)


lowers(prims.iota.default)(lambda ctx, length, *, start, step, **kwargs: _progression(ctx, start, step))


@lowers(aten.eye.default, aten.eye.m)
def eye(ctx: Context, *args: Any, **kwargs: Any) -> Tensor:
    dtype: torch.dtype = ctx.val.dtype

    def load(ops: Recorder, index: Index) -> Value:
        row, column = (ops.index_expr(position, torch.int64) for position in index)
        return ops.to_dtype(ops.eq(row, column), dtype)

    return ctx.lazy(load, [], cost=2, count=3)


def _triangle(ctx: Context, x: Tensor, diagonal: int, upper: bool) -> Tensor:
    dtype = math_dtype(x.dtype)
    read = reader(ctx, x, x.size, x.dtype)

    def load(ops: Recorder, index: Index) -> Value:
        row = ops.index_expr(index[-2] + diagonal, torch.int64)
        column = ops.index_expr(index[-1], torch.int64)
        inside = ops.ge(column, row) if upper else ops.le(column, row)
        zero = ops.constant(False if dtype is torch.bool else 0, dtype)
        return ops.to_dtype(ops.where(inside, read(ops, index), zero), x.dtype)

    return ctx.lazy(load, [x], cost=3, count=5)


lowers(aten.tril.default)(lambda ctx, x, diagonal=0: _triangle(ctx, x, diagonal, False))
lowers(aten.triu.default)(lambda ctx, x, diagonal=0: _triangle(ctx, x, diagonal, True))
