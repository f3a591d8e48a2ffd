"""Views under fewer names, factories as `full`, rearrangements as views and copies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import suggests_channels_last
from argand.passes.decompositions.rules import aten, decomposes, device, full, val
from argand.passes.layout import reshape, with_strides


@decomposes(aten.t.default)
def _t(b: Builder, x: fx.Node) -> Any:
    dims = [1, 0] if val(x).dim() == 2 else list(range(val(x).dim()))
    return b(aten.permute.default, x, dims)


@decomposes(aten.transpose.int)
def _transpose(b: Builder, x: fx.Node, first: int, second: int) -> Any:
    dims = list(range(val(x).dim()))
    if not dims:
        return x
    dims[first], dims[second] = dims[second], dims[first]
    return b(aten.permute.default, x, dims)


@decomposes(aten._unsafe_view.default, aten._reshape_alias.default)
def _view(b: Builder, x: fx.Node, size: list[int], stride: Any = None) -> Any:
    return b(aten.view.default, x, size)


@decomposes(aten._neg_view.default)
def _neg_view(b: Builder, x: fx.Node) -> Any:
    """What is read through the bit; views that leave the graph are made anew by the runtime."""
    return b(aten.neg.default, x)


@decomposes(aten.stack.default)
def _stack(b: Builder, tensors: list[fx.Node], dim: int = 0) -> Any:
    return b(aten.cat.default, [b(aten.unsqueeze.default, one, dim) for one in tensors], dim)


@decomposes(aten.block_diag.default)
def _block_diag(b: Builder, tensors: list[fx.Node]) -> Any:
    """Each beside zeros, one below the other."""
    if len({val(one).dtype for one in tensors}) > 1 or any(val(one).dim() != 2 for one in tensors):
        return NotImplemented
    widths = [val(one).shape[1] for one in tensors]
    sides = [[sum(widths[:number]), sum(widths[number + 1 :])] for number in range(len(widths))]
    return b(aten.cat.default, [b(aten.constant_pad_nd.default, one, side) for one, side in zip(tensors, sides)])


@decomposes(aten.repeat.default)
def _repeat(b: Builder, x: fx.Node, repeats: list[int]) -> Any:
    size = [1] * (len(repeats) - val(x).dim()) + list(val(x).shape)
    if 0 in repeats or 0 in size:
        return NotImplemented
    if all(n == 1 for n in repeats):
        return b(aten.clone.default, reshape(b, x, size), memory_format=torch.contiguous_format)
    source = reshape(b, x, size)
    for dim in range(len(size)):
        source = b(aten.unsqueeze.default, source, 2 * dim)
    pairs = [n for pair in zip(repeats, size) for n in pair]
    spread = b(aten.expand.default, source, pairs)
    copied = b(aten.clone.default, spread, memory_format=torch.contiguous_format)
    return b(aten.view.default, copied, [n * r for n, r in zip(size, repeats)])


def _factory(value: int) -> Any:
    def rule(b: Builder, size: list[int], **options: Any) -> Any:
        if options.get("layout") not in (None, torch.strided):
            return NotImplemented
        dtype = options.get("dtype") or torch.get_default_dtype()
        return b(aten.full.default, size, value, dtype=dtype, device=options.get("device") or torch.device("cpu"))

    return rule


def _like(value: int | None) -> Any:
    def rule(b: Builder, x: fx.Node, *given: Any, **options: Any) -> Any:
        number = given[0] if value is None else value
        known = _options(x, options)
        if known is None:
            return NotImplemented
        return b(aten.full.default, list(val(x).shape), number, **known)

    return rule


def _new(value: int | None) -> Any:
    def rule(b: Builder, x: fx.Node, size: list[int], *given: Any, **options: Any) -> Any:
        number = given[0] if value is None else value
        known = _options(x, options)
        return NotImplemented if known is None else b(aten.full.default, size, number, **known)

    return rule


def _options(x: fx.Node, options: dict[str, Any]) -> dict[str, Any] | None:
    if options.get("layout") not in (None, torch.strided):
        return None
    return {"dtype": options.get("dtype") or val(x).dtype, "device": options.get("device") or device(x)}


for _name, _value in (("zeros", 0), ("ones", 1)):
    decomposes(getattr(aten, _name).default)(_factory(_value))
    decomposes(getattr(aten, f"{_name}_like").default)(_like(_value))
    decomposes(getattr(aten, f"new_{_name}").default)(_new(_value))
decomposes(aten.full_like.default)(_like(None))
decomposes(aten.new_full.default)(_new(None))


@decomposes(aten.scalar_tensor.default)
def _scalar_tensor(b: Builder, value: Any, **options: Any) -> Any:
    dtype = options.get("dtype") or torch.get_default_dtype()
    return b(aten.full.default, [], value, dtype=dtype, device=options.get("device") or torch.device("cpu"))


def _copied(b: Builder, x: fx.Node, moved: fx.Node, channels: int, size: list[int]) -> fx.Node:
    """A copy of `moved`, seen in another size; its channels are innermost where those of `x` are.

    Arguments:
        channels: how many dimensions, from the second on, become the channels.
    """
    rank = val(moved).dim()
    if not suggests_channels_last(val(x).shape, val(x).stride()) or len(size) != 4:
        return b(aten.view.default, b(aten.clone.default, moved, memory_format=torch.contiguous_format), size)
    order = [0, *range(1 + channels, rank), *range(1, 1 + channels)]
    last = b(aten.permute.default, moved, order)
    copied = b(aten.clone.default, last, memory_format=torch.contiguous_format)
    viewed = b(aten.view.default, copied, [size[0], *size[2:], size[1]])
    return b(aten.permute.default, viewed, [0, 3, 1, 2])


@decomposes(aten.pixel_shuffle.default)
def _pixel_shuffle(b: Builder, x: fx.Node, factor: int) -> Any:
    *lead, channels, height, width = val(x).shape
    deep = channels // factor**2
    n = len(lead)
    parts = reshape(b, x, [*lead, deep, factor, factor, height, width])
    moved = b(aten.permute.default, parts, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return _copied(b, x, moved, 1, [*lead, deep, height * factor, width * factor])


@decomposes(aten.pixel_unshuffle.default)
def _pixel_unshuffle(b: Builder, x: fx.Node, factor: int) -> Any:
    *lead, channels, height, width = val(x).shape
    n = len(lead)
    parts = reshape(b, x, [*lead, channels, height // factor, factor, width // factor, factor])
    moved = b(aten.permute.default, parts, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return _copied(b, x, moved, 3, [*lead, channels * factor**2, height // factor, width // factor])


@decomposes(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def _channel_shuffle(b: Builder, x: fx.Node, groups: int) -> Any:
    n, channels, *rest = val(x).shape
    parts = reshape(b, x, [n, groups, channels // groups, *rest])
    moved = b(aten.permute.default, parts, [0, 2, 1, *range(3, 3 + len(rest))])
    return _copied(b, x, moved, 2, [n, channels, *rest])


@decomposes(aten.native_dropout.default)
def _no_dropout(b: Builder, x: fx.Node, p: float, train: bool | None = None) -> Any:
    if train is not False and p != 0:
        return NotImplemented
    return b(aten.clone.default, x), full(b, list(val(x).shape), True, x, torch.bool)


@decomposes(aten.index_select.default)
def _index_select(b: Builder, x: fx.Node, dim: int, index: fx.Node) -> Any:
    if val(x).dim() == 0 or val(index).dim() != 1:
        return NotImplemented
    picked = b(aten.index.Tensor, x, [None] * (dim % val(x).dim()) + [index])
    return with_strides(b, picked, val(picked).stride())


def _copy_of(view: OpOverload) -> Any:
    def rule(b: Builder, x: fx.Node, *given: Any, **options: Any) -> Any:
        part = b(view, x, *given, **options)
        return b(aten.clone.default, part, memory_format=torch.contiguous_format)

    return rule


decomposes(aten.diagonal_copy.default)(_copy_of(aten.diagonal.default))
decomposes(aten.unfold_copy.default)(_copy_of(aten.unfold.default))


def _times(factor: float) -> Any:
    def rule(b: Builder, x: fx.Node) -> Any:
        return b(aten.mul.Tensor, x, factor)

    return rule


decomposes(aten.deg2rad.default)(_times(math.pi / 180))
decomposes(aten.rad2deg.default)(_times(180 / math.pi))


@decomposes(aten.diagonal_backward.default)
def _diagonal_backward(b: Builder, grad: fx.Node, size: list[int], offset: int, dim1: int, dim2: int) -> Any:
    return b(aten.diagonal_scatter.default, full(b, list(size), 0, grad), grad, offset, dim1, dim2)


@decomposes(aten.diag_embed.default)
def _diag_embed(b: Builder, x: fx.Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    *size, length = val(x).shape
    first, second = sorted(dim % (len(size) + 2) for dim in (dim1, dim2))
    size.insert(first, length + abs(offset))
    size.insert(second, length + abs(offset))
    return b(aten.diagonal_scatter.default, full(b, size, 0, x), x, offset, dim1, dim2)


@decomposes(aten.roll.default)
def _roll(b: Builder, x: fx.Node, shifts: Any, dims: Any = ()) -> Any:
    """Without dimensions: of the elements in a row."""
    if dims or 0 in val(x).shape or len(shifts) != 1:
        return NotImplemented
    rolled = b(aten.roll.default, reshape(b, x, [val(x).numel()]), list(shifts), [0])
    return b(aten.view.default, rolled, list(val(x).shape))


decomposes(aten.trace.default)(lambda b, x: b(aten.sum.default, b(aten.diagonal.default, x)))


@decomposes(aten.heaviside.default)
def _heaviside(b: Builder, x: fx.Node, at_zero: fx.Node) -> Any:
    """0 of negative numbers and nan, 1 of positive ones, what is given of 0"""
    if val(x).dtype is torch.bool or val(x).dtype is not val(at_zero).dtype:
        return NotImplemented
    above = b(aten._to_copy.default, b(aten.gt.Scalar, x, 0), dtype=val(x).dtype)
    return b(aten.where.self, b(aten.eq.Scalar, x, 0), at_zero, above)
