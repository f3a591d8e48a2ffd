"""Ops that only gradients use, as ordinary ones: views' backwards, writes through strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import contiguous_strides
from argand.passes.decompositions.rules import aten, cast, decomposes, device, full, val
from argand.passes.layout import reshape


@decomposes(aten.slice_backward.default)
def _slice_backward(b: Builder, grad: fx.Node, size: list[int], dim: int, start: int, end: int, step: int) -> Any:
    """Zeros around (and, for a step, between) what was sliced."""
    extent = size[dim]
    start = _clamped(start, extent)
    if list(val(grad).shape) == list(size):
        return grad
    if step != 1 or 0 in size:
        return b(aten.slice_scatter.default, full(b, size, 0, grad), grad, dim, start, end, step)
    after = extent - start - val(grad).shape[dim]
    rank = len(size)
    dim = dim % rank
    pad = [0] * (2 * (rank - dim))
    pad[-2:] = [start, after]
    return b(aten.constant_pad_nd.default, grad, pad, 0.0)


def _clamped(start: int, extent: int) -> int:
    return min(max(start + extent if start < 0 else start, 0), extent)


@decomposes(aten.select_backward.default)
def _select_backward(b: Builder, grad: fx.Node, size: list[int], dim: int, index: int) -> Any:
    """Zeros around one slice."""
    dim = dim % len(size)
    index = index + size[dim] if index < 0 else index
    one = b(aten.unsqueeze.default, grad, dim)
    return b(aten.slice_backward.default, one, size, dim, index, index + 1, 1)


@decomposes(aten.as_strided_scatter.default)
def _as_strided_scatter(b: Builder, x: fx.Node, src: fx.Node, size: Any, stride: Any, offset: Any = None) -> Any:
    """A scatter into the flat tensor; where the view is the whole tensor in order, the source itself.

    The op's offset counts from the start of the storage, which is where a traced value begins: a compiled buffer may
    begin anywhere in an arena, so that the op as it is would write to other places.
    """
    have: torch.Tensor = val(x)
    shape = list(have.shape)
    if not have.is_contiguous() or have.storage_offset():
        return NotImplemented
    offset = offset or 0
    total, count = have.numel(), val(src).numel()
    if count == total and not offset and tuple(stride) == contiguous_strides(size):
        return reshape(b, src, shape)
    options = {"dtype": torch.int64, "device": device(x)}
    index = None
    for dim, (extent, step) in enumerate(zip(size, stride)):
        along = b(aten.arange.start_step, 0, extent, 1, **options)
        along = b(aten.mul.Tensor, along, step)
        along = b(aten.view.default, along, [extent if d == dim else 1 for d in range(len(size))])
        index = along if index is None else b(aten.add.Tensor, index, along)
    if index is None:
        index = full(b, [], 0, x, torch.int64)
    index = b(aten.add.Tensor, index, offset)
    index = reshape(b, b(aten.expand.default, index, list(size)), [count])
    flat = b(aten.view.default, x, [total])
    values = reshape(b, cast(b, src, have.dtype), [count])
    return b(aten.view.default, b(aten.scatter.src, flat, 0, index, values), shape)
