"""Reductions written in smaller ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, cast, decomposes, is_float, val, widen


@decomposes(aten.std.correction)
def _std(b: Builder, x: fx.Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """sqrt(var)"""
    if not is_float(x):
        return NotImplemented
    var = b(aten.var.correction, widen(b, x), dim, correction=correction, keepdim=keepdim)
    return cast(b, b(aten.sqrt.default, var), val(x).dtype)


@decomposes(aten.std_mean.correction)
def _std_mean(b: Builder, x: fx.Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """(sqrt(var), mean)"""
    if not is_float(x):
        return NotImplemented
    var, mean = b(aten.var_mean.correction, widen(b, x), dim, correction=correction, keepdim=keepdim)
    return cast(b, b(aten.sqrt.default, var), val(x).dtype), cast(b, mean, val(x).dtype)


@decomposes(aten.linalg_vector_norm.default)
def _vector_norm(
    b: Builder, x: fx.Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """|x|_2 = sqrt(sum x²);  |x|_1 = sum |x|;  |x|_inf = max |x|;  |x|_-inf = min |x|"""
    if val(x).numel() == 0 or not is_float(x) or dtype is not None:
        return NotImplemented
    wide = widen(b, x)
    dims = list(range(val(x).dim())) if dim is None else dim
    if ord == 2:
        norm = b(aten.sqrt.default, b(aten.sum.dim_IntList, b(aten.mul.Tensor, wide, wide), dims, keepdim))
    elif ord == 1:
        norm = b(aten.sum.dim_IntList, b(aten.abs.default, wide), dims, keepdim)
    elif ord == float("inf"):
        norm = b(aten.amax.default, b(aten.abs.default, wide), dims, keepdim)
    elif ord == float("-inf"):
        norm = b(aten.amin.default, b(aten.abs.default, wide), dims, keepdim)
    else:
        return NotImplemented
    return cast(b, norm, val(x).dtype)


@decomposes(aten.addr.default)
def _addr(b: Builder, x: fx.Node, u: fx.Node, v: fx.Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta x + alpha u vᵀ"""
    if beta != 1 or alpha != 1 or not is_float(x) or val(x).dtype is not torch.float32:
        return NotImplemented
    outer = b(aten.mul.Tensor, b(aten.unsqueeze.default, u, 1), b(aten.unsqueeze.default, v, 0))
    return b(aten.add.Tensor, x, outer)


@decomposes(aten._is_all_true.default)
def _is_all_true(b: Builder, x: fx.Node) -> Any:
    return b(aten.all.default, x)


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
