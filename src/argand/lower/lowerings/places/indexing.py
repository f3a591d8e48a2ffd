"""Reads at positions that tensors hold: embedding, gather, index, index_select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.sizes.expr import ZERO, Expr
from argand.ir.loops import Value
from argand.lower.context import LOOP_DTYPES, Context
from argand.lower.elementwise import broadcaster, number_in
from argand.lower.lowerings.views import wrap
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering, lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

INDEX_DTYPES = (torch.int64, torch.int32)
GATHER_COST = 8  # of a read at a position that is read first
INLINE_COST = 4  # a source that costs more is stored before it is read at random


def position_of(ops: Recorder, index: Tensor, at: Index, size: Expr, wraps: bool) -> Expr:
    """The element of an index tensor, as a position in a dimension of `size`."""
    value: Value = ops.to_dtype(index.load(ops, at), torch.int64)
    return ops.indirect_var(value, size, wraps)


def _source(ctx: Context, x: Tensor, *indices: Tensor) -> None:
    if x.dtype not in LOOP_DTYPES:
        raise NoLowering(f"loops do not compute with {x.dtype}")
    for index in indices:
        if index.dtype not in INDEX_DTYPES:
            raise NoLowering(f"an index of {index.dtype}")
    if x.cost >= INLINE_COST:
        ctx.realise(x)


@lowers(aten.embedding.default)
def embedding(
    ctx: Context, weight: Tensor, index: Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Tensor:
    _source(ctx, weight, index)

    def load(ops: Recorder, at: Index) -> Value:
        return weight.load(ops, (position_of(ops, index, at[:-1], weight.size[0], False), at[-1]))

    return ctx.lazy(load, [weight, index], cost=GATHER_COST, count=3)


@lowers(aten.gather.default)
def gather(ctx: Context, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if x.ndim == 0 or index.ndim == 0:
        raise NoLowering("gather of a 0-d tensor")
    dim = wrap(dim, x.ndim)
    _source(ctx, x, index)

    def load(ops: Recorder, at: Index) -> Value:
        place = position_of(ops, index, at, x.size[dim], False)
        return x.load(ops, (*at[:dim], place, *at[dim + 1 :]))

    return ctx.lazy(load, [x, index], cost=GATHER_COST, count=3)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ctx: Context, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    _source(ctx, x, *(each for _, each in given))
    if not given:
        raise NoLowering("an index without index tensors")
    for _, each in given:
        if each.device != x.device:
            raise NoLowering("an index on another device")
    shape = broadcast_sizes([each.size for _, each in given])
    dims = [dim for dim, _ in given]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    front = dims[0] if together else 0  # where the index's dimensions stand in the result
    places = [broadcaster(ctx, each, shape) for _, each in given]
    rest = [dim for dim in range(x.ndim) if dim not in dims]

    def load(ops: Recorder, at: Index) -> Value:
        inner = at[front : front + len(shape)]
        outer = at[:front] + at[front + len(shape) :]
        full: list[Any] = [ZERO] * x.ndim
        for dim, position in zip(rest, outer):
            full[dim] = position
        for (dim, each), place in zip(given, places):
            full[dim] = position_of(ops, each, place(inner), x.size[dim], True)
        return x.load(ops, tuple(full))

    return ctx.lazy(load, [x, *(each for _, each in given)], cost=GATHER_COST * len(given), count=3 * len(given))


@lowers(aten._unsafe_masked_index.default)
def masked_index(ctx: Context, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Tensor:
    """A number where the mask is false; there positions may be any, and so nobody is told of bad ones."""
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if len(given) != 1 or mask.dtype is not torch.bool or type(fill) not in (int, float):
        raise NoLowering("positions of several dimensions that a mask says")
    dim, position = given[0]
    _source(ctx, x, position)
    shown, size = broadcaster(ctx, mask, ctx.sizes(ctx.val.shape)), x.size[dim]
    behind = dim + position.ndim

    def load(ops: Recorder, at: Index) -> Value:
        place = ops.to_dtype(position.load(ops, at[dim:behind]), torch.int64)
        last = ops.sub(ops.index_expr(size, torch.int64), ops.constant(1, torch.int64))
        bounded = ops.minimum(ops.maximum(place, ops.constant(0, torch.int64)), last)
        value = x.load(ops, (*at[:dim], ops.indirect_var(bounded, size, False), *at[behind:]))
        return ops.where(mask.load(ops, shown(at)), value, ops.constant(number_in(fill, value.dtype), value.dtype))

    return ctx.lazy(load, [x, position, mask], cost=GATHER_COST, count=8)


def broadcast_sizes(sizes: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The size that all broadcast to."""
    ndim = max(len(size) for size in sizes)
    result: list[Expr] = [ZERO + 1] * ndim
    for size in sizes:
        for dim, extent in enumerate(size, ndim - len(size)):
            if extent != 1:
                result[dim] = extent
    return tuple(result)
