"""Reads and writes at places of a flattened tensor, membership, and small formulas over whole tensors."""

from __future__ import annotations

from math import pi
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, full, is_float, val
from argand.passes.layout import reshape

FEW: Final = 16  # values that each element is compared with, rather than looked up among sorted ones


def _flat(b: Builder, x: fx.Node) -> fx.Node:
    return reshape(b, x, [val(x).numel()])


@decomposes(aten.take.default)
def _take(b: Builder, x: fx.Node, index: fx.Node) -> Any:
    if not val(x).numel() or not val(index).numel():
        return NotImplemented
    return b(aten.index.Tensor, _flat(b, x), [index])


@decomposes(aten.put.default)
def _put(b: Builder, x: fx.Node, index: fx.Node, source: fx.Node, accumulate: bool = False) -> Any:
    if not val(x).numel() or not val(index).numel():
        return NotImplemented
    filled = b(aten.index_put.default, _flat(b, x), [_flat(b, index)], _flat(b, source), accumulate)
    return reshape(b, filled, list(val(x).shape))


def _unpool(rank: int) -> Any:
    def rule(b: Builder, x: fx.Node, index: fx.Node, size: list[int], *options: Any) -> Any:
        """Zeros, and each value at the place that its index says in the last dimensions."""
        shape = list(val(x).shape)
        if 0 in (*shape, *size) or not all(isinstance(extent, int) for extent in (*shape, *size)):
            return NotImplemented
        lead, volume, count = shape[:-rank], 1, 1
        for extent, before in zip(size, shape[-rank:]):
            volume, count = volume * extent, count * before
        parts = [reshape(b, each, [*lead, count]) for each in (index, x)]
        filled = b(aten.scatter.src, full(b, [*lead, volume], 0, x), len(lead), *parts)
        return b(aten.view.default, filled, [*lead, *size])

    return rule


decomposes(aten.max_unpool2d.default)(_unpool(2))
decomposes(aten.max_unpool3d.default)(_unpool(3))


@decomposes(aten.isin.Tensor_Tensor)
def _isin(b: Builder, x: fx.Node, values: fx.Node, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Compared with each of a few values; else with the one at the place where it belongs among the sorted ones"""
    count, shape = val(values).numel(), list(val(x).shape)
    if not count or 0 in shape or val(x).dtype is not val(values).dtype or val(x).dtype.is_complex:
        return NotImplemented
    flat = _flat(b, values)
    if count <= FEW:
        equal = b(aten.eq.Tensor, b(aten.unsqueeze.default, x, -1), flat)
        member = b(aten.any.dim, equal, -1)
    elif val(x).dtype is torch.bool:
        return NotImplemented
    else:
        ordered, _ = b(aten.sort.default, flat)
        place = b(aten.clamp_max.default, b(aten.searchsorted.Tensor, ordered, x), count - 1)
        member = b(aten.eq.Tensor, b(aten.index.Tensor, ordered, [place]), x)
    return b(aten.logical_not.default, member) if invert else member


@decomposes(aten.dist.default)
def _dist(b: Builder, x: fx.Node, y: fx.Node, p: Any = 2) -> Any:
    if not is_float(x) or val(x).dtype is not val(y).dtype:
        return NotImplemented
    return b(aten.linalg_vector_norm.default, b(aten.sub.Tensor, x, y), p)


@decomposes(aten.renorm.default)
def _renorm(b: Builder, x: fx.Node, p: Any, dim: int, largest: Any) -> Any:
    """Slices whose norm is above the largest one, divided by what they are above it"""
    if val(x).dtype not in (torch.float32, torch.float64) or not val(x).numel():
        return NotImplemented
    others = [each for each in range(val(x).dim()) if each != dim % val(x).dim()]
    norm = b(aten.linalg_vector_norm.default, x, p, others, True)
    scale = b(aten.mul.Tensor, b(aten.reciprocal.default, b(aten.add.Tensor, norm, 1e-7)), largest)
    above = b(aten.gt.Scalar, norm, largest)
    return b(aten.mul.Tensor, x, b(aten.where.self, above, scale, full(b, [], 1.0, norm)))


decomposes(aten.ldexp.Tensor)(lambda b, x, exponent: b(aten.mul.Tensor, x, b(aten.pow.Scalar, 2.0, exponent)))


@decomposes(aten.sinc.default)
def _sinc(b: Builder, x: fx.Node) -> Any:
    """sin(pi x) / (pi x), 1 of 0"""
    if val(x).dtype not in (torch.float32, torch.float64):
        return NotImplemented
    angle = b(aten.mul.Tensor, x, pi)
    wave = b(aten.div.Tensor, b(aten.sin.default, angle), angle)
    return b(aten.where.self, b(aten.eq.Scalar, x, 0), full(b, [], 1.0, x), wave)
