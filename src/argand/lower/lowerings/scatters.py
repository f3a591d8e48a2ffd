"""Sums at positions that tensors hold: the gradients of reads at such positions, and the ops of that kind.

On a CPU values are added one after the other in the order of the source, as eager's kernels do; elsewhere in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph import compat
from argand.graph.sizes.expr import ZERO, Expr, as_int, product, sum_of
from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.elementwise import broadcaster
from argand.lower.lowerings.indexing import INDEX_DTYPES, broadcast_sizes, position_of
from argand.lower.lowerings.pointwise import converted, refuse
from argand.lower.lowerings.views import wrap
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

ACCUMULATED = (torch.float32, torch.float64, torch.int64, torch.int32)
WIDE_ELEMENTS = 1 << 25  # of a sum in float32 that stands in for one in 16 bits
PARTS = 8  # of a row that threads add to side by side
LEAST_PART = 32  # elements of such a part

Entry = Callable[[Recorder, Index], tuple[Index, Value]]


def refuse_unordered(ctx: Context) -> None:
    """Leave sums to ATen whose order would be any, where the program asks for deterministic algorithms."""
    refuse(ctx.device.type != "cpu" and compat.deterministic()[0], "sums in any order")


def added(
    ctx: Context,
    start: Tensor,
    size: tuple[Expr, ...],
    entry: Entry,
    *,
    rows: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`start`, in the node's layout, with values added to some of its elements.

    Arguments:
        size: of the loops over the values, outermost first.
        entry: records, for a point of these loops, the element that is added to, and what is added.
        rows: the last loop runs along a row of the result: it may be split into parts, which run before the others.
        dtype: that is added up in; the node's if None.
    """
    dtype = dtype or ctx.val.dtype
    refuse(dtype not in ACCUMULATED, "sums at positions in that dtype")
    refuse_unordered(ctx)
    strides = ctx.sizes(ctx.val.stride())
    buffer = ctx.new_buffer(start.size, strides, dtype, ctx.device)
    ref = ctx.ref_of(buffer)
    ctx.store(start, ref, creates=True)
    length = as_int(size[-1]) if rows else None
    parts = PARTS if length is not None and length % PARTS == 0 and length >= PARTS * LEAST_PART else 1
    loops = (start.size[0] * 0 + parts, *size[:-1], size[-1] // parts) if parts > 1 else size
    ranges, dims, index = ctx.loop(loops, range(len(loops)))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    if parts > 1:
        index = (*index[1:-1], index[0] * loops[-1] + index[-1])
    place, value = entry(ops, index)
    at = sum_of([position * step for position, step in zip(place, buffer.stride)])
    ops.store(buffer.name, at, ops.to_dtype(value, dtype), "add")
    ctx.add_loop(ops, dims, loops, (), (), [], [buffer.name])
    return ctx.from_ref(ref, dtype, ctx.device)


def _wide(ctx: Context) -> torch.dtype:
    """In what a GPU adds up values of the node's dtype: its kernels add 16-bit floats in float32, too."""
    dtype: torch.dtype = ctx.val.dtype
    half = dtype in (torch.float16, torch.bfloat16) and ctx.device.type != "cpu"
    few = (as_int(product(ctx.sizes(ctx.val.shape))) or WIDE_ELEMENTS + 1) <= WIDE_ELEMENTS
    return torch.float32 if half and few else dtype


def _zeros(ctx: Context, dtype: torch.dtype) -> Tensor:
    val = ctx.val
    if val.dtype is not dtype:
        val = torch.empty_strided(val.shape, val.stride(), dtype=dtype, device="meta")
    return ctx.lazy(lambda ops, index: ops.constant(0.0 if dtype.is_floating_point else 0, dtype), [], val=val)


def _check(ctx: Context, value: Tensor, *indices: Tensor) -> None:
    refuse(any(each.dtype not in INDEX_DTYPES for each in indices), "positions of that dtype")
    refuse(value.dtype is not ctx.val.dtype, "values of another dtype")
    refuse(any(as_int(extent) == 0 for each in (value, *indices) for extent in each.size), "nothing to add")
    for each in (value, *indices):
        ctx.realise(each)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Context, grad: Tensor, index: Tensor, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    refuse(scale_grad_by_freq, "an embedding's gradient scaled by frequency")
    _check(ctx, grad, index)
    zero = 0.0 if grad.dtype.is_floating_point else 0
    weights, wide = ctx.sizes(ctx.val.shape), _wide(ctx)

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        row = ops.to_dtype(index.load(ops, at[:-1]), torch.int64)
        value = grad.load(ops, at)
        if padding_idx >= 0:
            kept = ops.ne(row, ops.constant(padding_idx, torch.int64))
            value = ops.where(kept, value, ops.constant(zero, value.dtype))
        return (ops.indirect_var(row, weights[0], False), at[-1]), value

    total = added(ctx, _zeros(ctx, wide), grad.size, entry, rows=True, dtype=wide)
    return total if wide is ctx.val.dtype else converted(ctx, total)


@lowers(aten.scatter_add.default)
def scatter_add(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    refuse(x.ndim == 0 or index.ndim != x.ndim or source.ndim != x.ndim, "scatter_add of 0-d tensors")
    dim = wrap(dim, x.ndim)
    _check(ctx, source, index)
    refuse(any(_longer(a, b) for a, b in zip(index.size, source.size)), "an index larger than its source")
    refuse(any(_longer(a, b) for d, (a, b) in enumerate(zip(index.size, x.size)) if d != dim), "an index too large")

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        place = position_of(ops, index, at, x.size[dim], False)
        return (*at[:dim], place, *at[dim + 1 :]), source.load(ops, at)

    return added(ctx, x, index.size, entry)


def _longer(a: Expr, b: Expr) -> bool:
    """Whether size `a` may be above size `b`."""
    if a is b:
        return False
    one, two = as_int(a), as_int(b)
    return one is None or two is None or one > two


@lowers(aten.index_add.default)
def index_add(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    refuse(x.ndim == 0 or index.ndim != 1 or source.ndim != x.ndim, "index_add of 0-d tensors")
    refuse(alpha != 1, "a scaled index_add")
    dim = wrap(dim, x.ndim)
    _check(ctx, source, index)
    same = all(a is b for d, (a, b) in enumerate(zip(source.size, x.size)) if d != dim)
    refuse(not same or source.size[dim] is not index.size[0], "index_add of other sizes")

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        place = position_of(ops, index, at[dim : dim + 1], x.size[dim], False)
        return (*at[:dim], place, *at[dim + 1 :]), source.load(ops, at)

    return added(ctx, x, source.size, entry, rows=dim < x.ndim - 1)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Context, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    refuse(not accumulate, "writes at positions, of which one may win")
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    refuse(not given or x.ndim == 0, "index_put without positions")
    dims = [dim for dim, _ in given]
    refuse(dims != list(range(dims[0], dims[0] + len(dims))), "positions in separate dimensions")
    _check(ctx, values, *(each for _, each in given))
    shape = broadcast_sizes([each.size for _, each in given])
    front, behind = dims[0], dims[0] + len(dims)
    size = (*x.size[:front], *shape, *x.size[behind:])
    refuse(any(as_int(extent) == 0 for extent in size) or values.ndim > len(size), "nothing to add")
    places = [broadcaster(ctx, each, shape) for _, each in given]
    source = broadcaster(ctx, values, size)

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        inner = at[front : front + len(shape)]
        found: list[Expr] = [*at[:front], *[ZERO] * len(dims), *at[front + len(shape) :]]
        for (dim, each), place in zip(given, places):
            found[dim] = position_of(ops, each, place(inner), x.size[dim], True)
        return tuple(found), values.load(ops, source(at))

    return added(ctx, x, size, entry, rows=behind < x.ndim)
