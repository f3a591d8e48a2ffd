"""Images enlarged with antialiasing, and their gradients: one dimension after the other, sums over windows.

Weights are small tensors that the graph computes, as eager computes them; what lies outside of a window is not read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, device, full, val
from argand.passes.layout import reshape
from argand.quick_dataclasses import dataclass

CURVE = -0.5  # of the cubic weights


@dataclass(frozen=True, slots=True)
class Windows:
    """What each element along a dimension is made of.

    Arguments:
        at: positions; the last ones may lie outside.
        inside: whether they are in the window.
        weights: of them.
    """

    at: fx.Node
    inside: fx.Node
    weights: fx.Node


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension that is resized: sizes before and after, and how."""

    size: int
    count: int
    corners: bool
    given: float | None
    reach: int

    @property
    def scale(self) -> float:
        if self.corners:
            return (self.size - 1) / (self.count - 1) if self.count > 1 else 0.0
        return 1.0 / self.given if self.given is not None and self.given > 0 else self.size / self.count

    @property
    def support(self) -> float:
        return self.reach * max(self.scale, 1.0)


def _column(b: Builder, x: fx.Node) -> fx.Node:
    node: fx.Node = b(aten.unsqueeze.default, x, -1)
    return node


def _numbers(b: Builder, count: int, like: fx.Node, dtype: torch.dtype) -> fx.Node:
    node: fx.Node = b(aten.arange.start_step, 0, count, 1, dtype=dtype, device=like.meta["device"])
    return node


def _weight(b: Builder, distance: fx.Node, reach: int) -> fx.Node:
    """1 - |x|, or Keys' kernel"""
    x = b(aten.abs.default, distance)
    nothing = full(b, [], 0.0, x)

    def polynomial(*factors: float) -> fx.Node:
        total = b(aten.mul.Tensor, x, factors[0])
        for factor in factors[1:-1]:
            total = b(aten.mul.Tensor, b(aten.add.Tensor, total, factor), x)
        node: fx.Node = b(aten.add.Tensor, total, factors[-1])
        return node

    near = polynomial(-1.0, 1.0) if reach == 1 else polynomial(CURVE + 2, -CURVE - 3, 0.0, 1.0)
    if reach == 2:
        far = polynomial(CURVE, -5 * CURVE, 8 * CURVE, -4 * CURVE)
        nothing = b(aten.where.self, b(aten.lt.Scalar, x, 2.0), far, nothing)
    weight: fx.Node = b(aten.where.self, b(aten.lt.Scalar, x, 1.0), near, nothing)
    return weight


def _starts(b: Builder, axis: Axis, like: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Of each element after: its middle, the first position of its window, and the first one behind that."""
    half = 0.5
    numbers = _numbers(b, axis.count, like, val(like).dtype)
    middle = b(aten.mul.Tensor, b(aten.add.Tensor, numbers, half), axis.scale)
    low = b(aten._to_copy.default, b(aten.add.Tensor, middle, half - axis.support), dtype=torch.int64)
    high = b(aten._to_copy.default, b(aten.add.Tensor, middle, half + axis.support), dtype=torch.int64)
    return middle, b(aten.clamp_min.default, low, 0), b(aten.clamp_max.default, high, axis.size)


def _windows(b: Builder, axis: Axis, like: fx.Node) -> Windows:
    """Of each element after."""
    middle, start, end = _starts(b, axis, like)
    most = 2 * math.ceil(axis.support) + 1
    place = _numbers(b, most, like, torch.int64)
    at = b(aten.add.Tensor, _column(b, start), place)
    inside = b(aten.lt.Tensor, at, _column(b, end))
    away = _column(b, b(aten.sub.Tensor, start, middle))
    distance = b(aten.add.Tensor, b(aten.add.Tensor, place, away), 0.5)
    weights = _weight(b, b(aten.mul.Tensor, distance, 1.0 / max(axis.scale, 1.0)), axis.reach)
    weights = b(aten.where.self, inside, weights, full(b, [], 0.0, weights))
    total = b(aten.sum.dim_IntList, weights, [-1], True)
    none = b(aten.eq.Scalar, total, 0.0)
    weights = b(aten.div.Tensor, weights, b(aten.where.self, none, full(b, [], 1.0, total), total))
    return Windows(b(aten.clamp_max.default, at, axis.size - 1), inside, weights)


def _turned(b: Builder, axis: Axis, like: fx.Node) -> Windows:
    """Of each element before: the elements after that are made of it."""
    windows = _windows(b, axis, like)
    _, start, end = _starts(b, axis, like)
    most = min(int(2 * (axis.support + 1) / axis.scale) + 2, axis.count) if axis.scale else axis.count
    places = _numbers(b, axis.size, like, torch.int64)
    first = b(aten.searchsorted.Tensor, end, places, right=True)
    at = b(aten.add.Tensor, _column(b, first), _numbers(b, most, like, torch.int64))
    whole = b(aten.lt.Scalar, at, axis.count)
    at = b(aten.clamp_max.default, at, axis.count - 1)
    place = b(aten.sub.Tensor, _column(b, places), b(aten.index.Tensor, start, [at]))
    inside = b(aten.logical_and.default, whole, b(aten.ge.Scalar, place, 0))
    inside = b(aten.logical_and.default, inside, b(aten.lt.Tensor, _column(b, places), b(aten.index.Tensor, end, [at])))
    place = b(aten.clamp_max.default, b(aten.clamp_min.default, place, 0), val(windows.at).shape[1] - 1)
    return Windows(at, inside, b(aten.index.Tensor, windows.weights, [at, place]))


def _summed(b: Builder, x: fx.Node, dim: int, windows: Windows) -> fx.Node:
    """Each element along `dim` as the sum of its window."""
    behind = [1] * (val(x).dim() - 1 - dim)
    shape = [*val(windows.at).shape, *behind]
    inside = reshape(b, windows.inside, shape)
    values = b(aten._unsafe_masked_index.default, x, inside, [*[None] * dim, windows.at], 0)
    weighed = b(aten.mul.Tensor, values, reshape(b, windows.weights, shape))
    total: fx.Node = b(aten.sum.dim_IntList, weighed, [dim + 1])
    return total


def _rule(reach: int, gradient: bool) -> Any:
    def rule(b: Builder, x: fx.Node, size: Any, *rest: Any) -> Any:
        before, (corners, *scales) = (rest[0], rest[1:]) if gradient else (val(x).shape, rest)
        sizes = [*before, *size, *val(x).shape]
        if val(x).dtype not in (torch.float32, torch.float64) or not all(isinstance(n, int) and n for n in sizes):
            return NotImplemented
        if any(old > new for old, new in zip(before[2:], size)):  # eager reads the long windows of rows in vectors
            return NotImplemented
        if list(before[2:]) == list(size):
            return b(aten.clone.default, x)
        for dim in (2, 3) if gradient else (3, 2):
            if before[dim] == size[dim - 2]:
                continue
            given = scales[dim - 2] if len(scales) == 2 else None
            axis = Axis(before[dim], size[dim - 2], corners, given, reach)
            x = _summed(b, x, dim, _turned(b, axis, x) if gradient else _windows(b, axis, x))
        return x

    return rule


for _name, _reach in (("bilinear", 1), ("bicubic", 2)):
    decomposes(getattr(aten, f"_upsample_{_name}2d_aa").default)(_rule(_reach, False))
    decomposes(getattr(aten, f"_upsample_{_name}2d_aa_backward").default)(_rule(_reach, True))


@decomposes(aten.affine_grid_generator.default)
def _affine_grid(b: Builder, theta: fx.Node, size: list[Any], corners: bool) -> Any:
    """Each place of an image, as numbers between -1 and 1 and a 1 beside them, times a matrix"""
    rank = len(size) - 2
    known = all(isinstance(extent, int) and extent > 0 for extent in size)
    if not known or val(theta).dtype not in (torch.float32, torch.float64) or val(theta).shape[1:] != (rank, rank + 1):
        return NotImplemented

    def column(number: int) -> fx.Node:
        return reshape(b, b(aten.select.int, theta, 2, number), [size[0], *[1] * rank, rank])

    total: Any = None
    for number, extent in enumerate(reversed(size[2:])):
        place = b(aten.linspace.default, -1.0, 1.0, extent, dtype=val(theta).dtype, device=device(theta))
        if extent == 1:
            place = full(b, [1], 0.0, theta)
        elif not corners:
            place = b(aten.div.Tensor, b(aten.mul.Tensor, place, extent - 1), extent)
        part = b(aten.mul.Tensor, reshape(b, place, [extent, *[1] * (number + 1)]), column(number))
        total = part if total is None else b(aten.add.Tensor, total, part)
    return b(aten.add.Tensor, total, column(rank))
