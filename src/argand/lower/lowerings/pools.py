"""Pooling over windows, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.sizes.expr import Expr, as_int, sum_of
from argand.ir.loops import Value
from argand.lower.context import Context, math_dtype
from argand.lower.layout import stride_order
from argand.lower.lowerings.indexing import INDEX_DTYPES
from argand.lower.lowerings.norms import uses
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.scatters import refuse_unordered
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

MAX_TAPS = 25  # elements of a window that a loop body reads one by one

Place = tuple[Expr, "Value | None"]  # a position in a dimension, and where it is inside (None: everywhere)


def numbers_of(value: Any, rank: int) -> tuple[int, ...]:
    """A number for each dimension, from that many or one for all."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    refuse(not all(isinstance(n, int) for n in numbers), "a window of unknown size")
    return tuple(numbers * rank) if len(numbers) == 1 else tuple(numbers)


class Windows:
    """Where the windows of a pooling or convolution lie in its input.

    Arguments:
        size, stride, padding, dilation: as the op has them.
        extent: sizes of the input along which windows move.
    """

    def __init__(self, size: Any, stride: Any, padding: Any, dilation: Any, extent: Sequence[Expr]) -> None:
        rank = len(extent)
        self.size = numbers_of(size, rank)
        self.stride = numbers_of(stride, rank) if stride else self.size
        self.padding = numbers_of(padding, rank)
        self.dilation = numbers_of(dilation, rank)
        self.extent = tuple(extent)

    def along(self, ops: Recorder, axis: int, out: Expr) -> list[Place]:
        """The places of window `out` in one dimension."""
        start = out * self.stride[axis] - self.padding[axis]
        limit = self.extent[axis]
        return [self.place(ops, start + tap * self.dilation[axis], limit) for tap in range(self.size[axis])]

    @staticmethod
    def place(ops: Recorder, at: Expr, limit: Expr) -> Place:
        """A position in a dimension of size `limit`, and whether it is in it."""
        inside: Value | None = None
        value = ops.index_expr(at, torch.int64)
        low, high = ops.simplifier.bounds(at)
        if low is None or low < 0:
            inside = ops.ge(value, ops.constant(0, torch.int64))
        last = as_int(limit)
        if last is None or high is None or high >= last:
            inside = both(ops, inside, ops.lt(value, ops.index_expr(limit, torch.int64)))
        return at, inside


def both(ops: Recorder, a: Value | None, b: Value | None) -> Value | None:
    """The conjunction of two conditions that may be absent."""
    return b if a is None else a if b is None else ops.logical_and(a, b)


def tap(ops: Recorder, x: Tensor, place: Index, inside: Value | None, outside: float) -> Value:
    """One element of a window, in the dtype of computation."""
    math = math_dtype(x.dtype)
    if inside is None:
        return ops.to_dtype(x.load(ops, place), math)
    return ops.masked(inside, lambda: ops.to_dtype(x.load(ops, place), math), outside)


def _pooled(size: Any, stride: Any, padding: Any, dilation: Any, x: Tensor) -> Windows:
    """Those of a pooling of images."""
    windows = Windows(size, stride, padding, dilation, x.size[-2:])
    refuse(windows.size[0] * windows.size[1] > MAX_TAPS, "pooling over large windows")
    return windows


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    ctx: Context, x: Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "max pooling of integers or nothing")
    windows = _pooled(size, stride, padding, dilation, x)
    ctx.realise(x)
    math = math_dtype(x.dtype)

    def scan(ops: Recorder, index: Index, positions: bool) -> Value:
        rows, columns = (windows.along(ops, axis, index[axis - 2]) for axis in (0, 1))
        best: Value = ops.constant(-float("inf"), math)
        width = x.size[-1]
        at = _first(ops, rows, columns, width) if positions else best
        for row, row_inside in rows:
            for column, column_inside in columns:
                inside = both(ops, row_inside, column_inside)
                value = tap(ops, x, (*index[:-2], row, column), inside, -float("inf"))
                if not positions:
                    best = ops.maximum(value, best)
                    continue
                better = ops.logical_or(ops.gt(value, best), ops.compare("ne", value, value))
                best = ops.where(better, value, best)
                at = ops.where(better, ops.index_expr(row * width + column, torch.int64), at)
        return at if positions else ops.to_dtype(best, x.dtype)

    taps = windows.size[0] * windows.size[1]
    value_meta, place_meta = ctx.val
    values = ctx.lazy(lambda ops, index: scan(ops, index, False), [x], cost=8 * taps, count=6 * taps, val=value_meta)
    places = ctx.lazy(lambda ops, index: scan(ops, index, True), [x], cost=8 * taps, count=8 * taps, val=place_meta)
    if uses(ctx, 1):
        ctx.realise_together([values, places])
    else:
        ctx.realise(values)
    return values, places


def _first(ops: Recorder, rows: list[Place], columns: list[Place], width: Expr) -> Value:
    """The first element of a window that is inside: the position of its maximum when all of it is -inf."""
    firsts = []
    for places in (rows, columns):
        known = next((n for n, (at, _) in enumerate(places) if (ops.simplifier.bounds(at)[0] or 0) >= 0), -1)
        found = ops.index_expr(places[known][0], torch.int64)
        for at, _ in reversed(places[:known]):
            value = ops.index_expr(at, torch.int64)
            found = ops.where(ops.ge(value, ops.constant(0, torch.int64)), value, found)
        firsts.append(found)
    return ops.add(ops.mul(firsts[0], ops.index_expr(width, torch.int64)), firsts[1])


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    places: Tensor,
) -> Tensor:
    """Each element of grad is added where its window's maximum was."""
    dtype = ctx.val.dtype
    refuse(dtype not in (torch.float32, torch.float64) or grad.dtype is not dtype, "gradients in reduced precision")
    refuse(places.dtype not in INDEX_DTYPES or any(extent == 0 for extent in grad.size), "max pooling of nothing")
    shape, strides = ctx.sizes(ctx.val.shape), ctx.sizes(ctx.val.stride())
    refuse(strides[-2] != shape[-1] * strides[-1], "gradients whose rows are apart")
    refuse_unordered(ctx)
    buffer = ctx.new_buffer(shape, strides, dtype, ctx.device)
    ref = ctx.ref_of(buffer)
    ctx.store(ctx.lazy(lambda ops, index: ops.constant(0.0, dtype), []), ref, creates=True)
    ctx.realise(places)
    ranges, dims, index = ctx.loop(grad.size, stride_order(grad.size, grad.stride, ctx.hints))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    value = grad.load(ops, index)
    at = ops.indirect_var(ops.to_dtype(places.load(ops, index), torch.int64), shape[-2] * shape[-1], False)
    lead = [position * step for position, step in zip(index[:-2], strides[:-2])]
    ops.store(buffer.name, sum_of([*lead, at * strides[-1]]), value, "add")
    ctx.add_loop(ops, dims, grad.size, (), (), [], [buffer.name])
    return ctx.from_ref(ref, dtype, ctx.device)


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    ctx: Context,
    x: Tensor,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "average pooling of integers or nothing")
    windows = _pooled(size, stride, padding, 1, x)
    math = math_dtype(x.dtype)
    padded = windows.padding != (0, 0)
    refuse(((padded and not count_include_pad) or ceil_mode) and divisor is None, "averages over a varying count")
    taps = windows.size[0] * windows.size[1]
    refuse(divisor == 0, "averages over nothing")
    ctx.realise(x)

    def load(ops: Recorder, index: Index) -> Value:
        rows, columns = (windows.along(ops, axis, index[axis - 2]) for axis in (0, 1))
        total: Value = ops.constant(0.0, math)
        for row, row_inside in rows:
            for column, column_inside in columns:
                inside = both(ops, row_inside, column_inside)
                total = ops.add(total, tap(ops, x, (*index[:-2], row, column), inside, 0.0))
        return ops.to_dtype(ops.truediv(total, ops.constant(float(divisor or taps), math)), x.dtype)

    return ctx.lazy(load, [x], cost=4 * taps, count=5 * taps)
