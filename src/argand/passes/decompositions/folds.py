"""Blocks of images as columns and back, as views, moves and sums."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, is_float, val
from argand.passes.layout import reshape

MOST_TAPS: Final = 16  # elements of a block, of which each is a term of a sum


@decomposes(aten.im2col.default)
def _im2col(b: Builder, x: fx.Node, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows of the padded image as views, moved to where eager has them."""
    if not is_float(x) or 0 in val(x).shape:
        return NotImplemented
    windows = x
    if padding[0] or padding[1]:
        windows = b(aten.constant_pad_nd.default, x, [padding[1], padding[1], padding[0], padding[0]], 0.0)
    dims = val(x).dim()
    for axis in range(2):
        reach = (size[axis] - 1) * dilation[axis] + 1
        windows = b(aten.unfold.default, windows, dims - 2 + axis, reach, stride[axis])
        if dilation[axis] != 1:
            windows = b(aten.slice.Tensor, windows, -1, 0, None, dilation[axis])
    order = [*range(dims - 2), dims, dims + 1, dims - 2, dims - 1]
    moved = b(aten.clone.default, b(aten.permute.default, windows, order), memory_format=torch.contiguous_format)
    rows, columns = val(moved).shape[-2:]
    channels = val(x).shape[-3] * size[0] * size[1]
    return b(aten.view.default, moved, [*val(x).shape[:-3], channels, rows * columns])


@decomposes(aten.col2im.default)
def _col2im(b: Builder, x: fx.Node, image: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Blocks that meet none other, moved; blocks a step apart as a sum of images, in eager's order"""
    if not is_float(x) or 0 in val(x).shape or not all(isinstance(extent, int) for extent in image):
        return NotImplemented
    reach = [(size[axis] - 1) * dilation[axis] + 1 for axis in range(2)]
    counts = [(image[axis] + 2 * padding[axis] - reach[axis]) // stride[axis] + 1 for axis in range(2)]
    lead, channels = list(val(x).shape[:-2]), val(x).shape[-2] // (size[0] * size[1])
    blocks = reshape(b, x, [*lead, channels, *size, *counts])
    if list(stride) == list(size) and list(dilation) == [1, 1] and list(padding) == [0, 0]:
        first = len(lead) + 1
        order = [*range(first), first + 2, first, first + 3, first + 1]
        moved = b(aten.clone.default, b(aten.permute.default, blocks, order), memory_format=torch.contiguous_format)
        covered = [counts[axis] * size[axis] for axis in range(2)]
        whole = b(aten.view.default, moved, [*lead, channels, *covered])
        rest = [image[1] - covered[1], image[0] - covered[0]]
        return b(aten.constant_pad_nd.default, whole, [0, rest[0], 0, rest[1]], 0.0) if any(rest) else whole
    if list(stride) != [1, 1] or size[0] * size[1] > MOST_TAPS:
        return NotImplemented
    total: Any = None
    for row in range(size[0]):
        for column in range(size[1]):
            tap = b(aten.select.int, b(aten.select.int, blocks, -4, row), -3, column)
            pads = []
            for axis, at in ((1, column), (0, row)):
                before = at * dilation[axis] - padding[axis]
                pads += [before, image[axis] - counts[axis] - before]
            placed = b(aten.constant_pad_nd.default, tap, pads, 0.0)
            total = b(aten.add.Tensor, placed, 0.0) if total is None else b(aten.add.Tensor, total, placed)
    return total
