"""Writes where a mask is true, one value after the other: which one follows from how many places before are true."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, full, val
from argand.passes.layout import reshape


def _counted(b: Builder, mask: fx.Node) -> fx.Node:
    """For each place of a mask, in one dimension, how many are true up to there and with it."""
    return b(aten.cumsum.default, reshape(b, mask, [val(mask).numel()]), 0, dtype=torch.int64)


def _places(b: Builder, count: fx.Node, shape: list[int]) -> fx.Node:
    """Which value each place of a mask takes, where it is true; before the first such place it is the last one."""
    return reshape(b, b(aten.sub.Tensor, count, 1), shape)


def _check_count(b: Builder, count: fx.Node, expected: int) -> None:
    """Raise where a mask is not true in as many places as there are values."""
    last = b(aten.slice.Tensor, count, 0, val(count).numel() - 1, val(count).numel())
    b(aten.gather.default, full(b, [1], 0, count), 0, b(aten.sub.Tensor, last, expected))


@decomposes(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(b: Builder, x: fx.Node, indices: list[Any], values: fx.Node, accumulate: bool = False) -> Any:
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if len(given) != 1 or val(given[0][1]).dtype is not torch.bool:
        return NotImplemented
    front, mask = given[0]
    whole, size = val(x), list(val(values).shape)
    if val(values).dtype is not whole.dtype or 0 in whole.shape or 0 in size:
        return NotImplemented
    if accumulate and whole.dtype is torch.bool:
        return NotImplemented
    shape = list(val(mask).shape)
    behind = whole.dim() - front - len(shape)
    at = len(size) - behind - 1  # the dimension of `values` that has one value for each place
    if at > front or list(whole.shape[front : front + len(shape)]) != shape:
        return NotImplemented
    if at >= 0 and size[at] == 1:
        values = reshape(b, values, [*size[:at], *[1] * len(shape), *size[at + 1 :]])
    elif at >= 0:
        if not shape:
            return NotImplemented
        count = _counted(b, mask)
        _check_count(b, count, size[at])
        values = b(aten.index.Tensor, values, [*[None] * at, _places(b, count, shape)])
    if accumulate:
        values = b(aten.add.Tensor, x, values)
    return b(aten.where.self, reshape(b, mask, [*shape, *[1] * behind]), values, x)


@decomposes(aten.masked_scatter.default)
def _masked_scatter(b: Builder, x: fx.Node, mask: fx.Node, source: fx.Node) -> Any:
    if val(mask).dtype is not torch.bool or val(source).dtype is not val(x).dtype or not val(source).numel():
        return NotImplemented
    shape = list(torch.broadcast_shapes(val(x).shape, val(mask).shape))
    if 0 in shape:
        return NotImplemented
    mask = b(aten.expand.default, mask, shape)
    flat = reshape(b, source, [val(source).numel()])
    taken = b(aten.index.Tensor, flat, [_places(b, _counted(b, mask), shape)])
    return b(aten.where.self, mask, taken, x)


@decomposes(aten.masked_scatter_backward.default)
def _masked_scatter_backward(b: Builder, grad: fx.Node, mask: fx.Node, sizes: list[int]) -> Any:
    """The gradient of each value is that of the place that took it; places that took none write behind the last one."""
    wanted, size = 1, list(val(grad).shape)
    for extent in sizes:
        wanted *= extent
    if 0 in size or not wanted or val(mask).dtype is not torch.bool:
        return NotImplemented
    mask = b(aten.expand.default, mask, size)
    place = _places(b, _counted(b, mask), size)
    place = b(aten.where.self, mask, place, full(b, [], wanted, place))
    empty = full(b, [wanted + 1], 0, grad)
    count = [val(grad).numel()]
    filled = b(aten.index_put.default, empty, [reshape(b, place, count)], reshape(b, grad, count))
    return reshape(b, b(aten.slice.Tensor, filled, 0, 0, wanted), list(sizes))
