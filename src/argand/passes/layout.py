"""Layout helpers for rewrites: the same values in other strides."""

from __future__ import annotations

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import is_dense, lies_densely, memory_order

aten = torch.ops.aten


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal strides, those of size-1 dimensions aside."""
    if a.shape != b.shape:
        return False
    return a.numel() == 0 or all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride()))


def with_strides(b: Builder, node: fx.Node, stride: tuple[int, ...]) -> fx.Node:
    """`node` in the dense layout `stride`: itself where it is laid out so, or where `stride` is not dense."""
    val: torch.Tensor = node.meta["val"]
    size = tuple(val.shape)
    if not is_dense(size, stride) or all(n == 1 or s == t for n, s, t in zip(size, val.stride(), stride)):
        return node
    order = memory_order(size, stride)
    if order == tuple(range(len(order))):
        return b(aten.clone.default, node, memory_format=torch.contiguous_format)
    moved = b(aten.permute.default, node, list(order))
    copied = b(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return b(aten.permute.default, copied, [order.index(d) for d in range(len(order))])


def exact_strides(b: Builder, node: fx.Node, want: torch.Tensor) -> fx.Node:
    """`node` with strides equal to `want`'s also in dimensions of size 1, which the user may look at."""
    have: torch.Tensor = node.meta["val"]
    if have.stride() == want.stride() or not lies_densely(want):
        return node
    return b(aten.as_strided.default, node, list(want.shape), list(want.stride()))


def reshape(b: Builder, node: fx.Node, size: list[int]) -> fx.Node:
    """`node` in another shape: a view where its strides allow one, else a view of a contiguous copy."""
    val: torch.Tensor = node.meta["val"]
    if list(val.shape) == size:
        return node
    try:
        return b(aten.view.default, node, size)
    except RuntimeError:
        copied = b(aten.clone.default, node, memory_format=torch.contiguous_format)
        return b(aten.view.default, copied, size)
