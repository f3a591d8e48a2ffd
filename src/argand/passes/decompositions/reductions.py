"""Reductions written in smaller ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, is_float, val


@decomposes(aten.addr.default)
def _addr(b: Builder, x: fx.Node, u: fx.Node, v: fx.Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta x + alpha u vᵀ"""
    if beta != 1 or alpha != 1 or not is_float(x) or val(x).dtype is not torch.float32:
        return NotImplemented
    outer = b(aten.mul.Tensor, b(aten.unsqueeze.default, u, 1), b(aten.unsqueeze.default, v, 0))
    return b(aten.add.Tensor, x, outer)


decomposes(aten._is_all_true.default)(lambda b, x: b(aten.all.default, x))


@decomposes(aten._euclidean_dist.default)
def _euclidean_dist(b: Builder, x: fx.Node, y: fx.Node) -> Any:
    """sqrt(x² - 2 x y + y²) as one product of matrices, whose last columns are the squares and ones"""
    one, two = val(x), val(y)
    if one.dim() not in (2, 3) or one.shape[:-2] != two.shape[:-2] or 0 in (*one.shape, *two.shape):
        return NotImplemented
    squares = [b(aten.sum.dim_IntList, b(aten.mul.Tensor, each, each), [-1], True) for each in (x, y)]
    ones = [b(aten.full_like.default, each, 1) for each in squares]
    left = b(aten.cat.default, [b(aten.mul.Tensor, x, -2), squares[0], ones[0]], -1)
    right = b(aten.cat.default, [y, ones[1], squares[1]], -1)
    right = b(aten.permute.default, right, [*range(one.dim() - 2), one.dim() - 1, one.dim() - 2])
    product = b(aten.mm.default if one.dim() == 2 else aten.bmm.default, left, right)
    return b(aten.sqrt.default, b(aten.clamp_min.default, product, 0))
