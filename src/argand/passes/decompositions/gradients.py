"""Ops that only gradients use, as ordinary ones: views' backwards, writes through strides."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import contiguous_strides
from argand.passes.decompositions.rules import aten, cast, decomposes, device, full, is_float, val, widen
from argand.passes.layout import reshape

NARROW_PADS = 27  # places that an element of a padded tensor may stand for, up to which one loop adds them up


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


def _nearest_backward(rank: int) -> Any:
    def rule(b: Builder, grad: fx.Node, size: list[int], whole: list[int], *scales: Any) -> Any:
        """Of an enlargement by whole factors: sums over what each element became."""
        factors = [after // before if before else 0 for after, before in zip(size, whole[-rank:])]
        given = [scales[place] if place < len(scales) else None for place in range(rank)]
        exact = all(f * n == after for f, n, after in zip(factors, whole[-rank:], size))
        if not exact or 0 in factors or any(s is not None and s != f for s, f in zip(given, factors)):
            return NotImplemented
        if not is_float(grad) or 0 in whole:
            return NotImplemented
        parts = [number for pair in zip(whole[-rank:], factors) for number in pair]
        lead = len(whole) - rank
        split = b(aten.view.default, widen(b, grad), [*whole[:-rank], *parts])
        dims = [lead + 2 * place + 1 for place in range(rank)]
        return cast(b, b(aten.sum.dim_IntList, split, dims), val(grad).dtype)

    return rule


for _rank in (1, 2, 3):
    decomposes(getattr(aten, f"upsample_nearest{_rank}d_backward").default)(_nearest_backward(_rank))
    decomposes(getattr(aten, f"_upsample_nearest_exact{_rank}d_backward").default)(_nearest_backward(_rank))


@decomposes(aten.mul.Tensor)
def silu_gradient(b: Builder, grad: Any, slope: Any) -> Any:
    """Torch spells the gradient of silu out where it is traced: of 16-bit floats it is rounded once, as by eager's."""
    gate, curve = _arguments(slope, aten.mul.Tensor)
    bent, one = _arguments(curve, aten.add.Scalar)
    x, rest = _arguments(bent, aten.mul.Tensor)
    ones, again = _arguments(rest, aten.sub.Tensor)
    (source,) = _arguments(gate, aten.sigmoid.default, 1)
    filled = _arguments(ones, aten.full.default)[1]
    if source is None or source is not x or gate is not again or one != 1 or filled != 1:
        return NotImplemented
    dtype = val(x).dtype
    if dtype not in (torch.bfloat16, torch.float16) or not isinstance(grad, fx.Node) or val(grad).dtype is not dtype:
        return NotImplemented
    wide, g = widen(b, x), widen(b, grad)
    s = b(aten.sigmoid.default, wide)
    inner = b(aten.add.Scalar, b(aten.mul.Tensor, wide, b(aten.rsub.Scalar, s, 1)), 1)
    return cast(b, b(aten.mul.Tensor, g, b(aten.mul.Tensor, s, inner)), dtype)


def _arguments(node: Any, target: Any, count: int = 2) -> tuple[Any, ...]:
    """The first arguments of a call of `target`; Nones of anything else."""
    if isinstance(node, fx.Node) and node.target is target and len(node.args) >= count:
        return node.args[:count]
    return (None,) * count


@decomposes(*[getattr(aten, f"replication_pad{rank}d_backward").default for rank in (1, 2, 3)])
def _replication_backward(b: Builder, grad: fx.Node, x: fx.Node, given: list[int]) -> Any:
    """Of wide pads: what lies inside, its first and last elements with the sums of what stands for them outside."""
    pads = list(zip(given[::2], given[1::2]))
    known = all(type(n) is int and n > 0 for n in (*val(grad).shape, *val(x).shape))
    if not known or not is_float(grad) or min(given) < 0 or prod(1 + low + high for low, high in pads) <= NARROW_PADS:
        return NotImplemented
    total, rank = widen(b, grad), val(x).dim()
    for dim, (low, _) in zip(reversed(range(rank)), pads):
        extent = val(x).shape[dim]
        ends = [0, low + 1, low + extent - 1, val(grad).shape[dim]] if extent > 1 else [0, val(grad).shape[dim]]
        parts = [b(aten.slice.Tensor, total, dim, *pair) for pair in pairwise(ends) if pair[0] < pair[1]]
        for end in {0, len(parts) - 1}:
            parts[end] = b(aten.sum.dim_IntList, parts[end], [dim], True)
        total = b(aten.cat.default, parts, dim)
    return cast(b, total, val(grad).dtype)
