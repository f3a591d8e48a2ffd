"""Reductions written in smaller ones, and small products."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, cast, decomposes, device, is_float, val, widen
from argand.passes.layout import reshape

SMALL_MATRIX = 1 << 16  # elements; a matrix that is read once, by a library whose call costs as much as reading it
FEW_TERMS = 400  # of a product of matrices that ATen computes without a library, wherever they lie


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


@decomposes(aten.bmm.default)
def _bmm(b: Builder, x: fx.Node, y: fx.Node) -> Any:
    """Of a column and a row, their products; of small matrices and vectors, sums of products, fused with the rest.

    Of many matrices and one that all share, a product of two matrices.
    """
    if _is_shared(y) and 0 not in val(x).shape:
        count, rows, inner = val(x).shape
        product = b(aten.mm.default, reshape(b, x, [count * rows, inner]), b(aten.select.int, y, 0, 0))
        return b(aten.view.default, product, [count, rows, val(y).shape[2]])
    if device(x).type != "cpu" or 0 in (*val(x).shape, *val(y).shape):
        return NotImplemented
    if val(x).dtype not in (torch.float32, torch.float64):
        laid_out = _laid_out(b, x, y) if val(x).dtype.is_complex else None
        return NotImplemented if laid_out is None else b(aten.bmm.default, *laid_out)
    _, rows, inner = val(x).shape
    columns = val(y).shape[2]
    if inner == 1:
        return b(aten.mul.Tensor, x, y)
    if columns == 1 and rows * inner <= SMALL_MATRIX:
        return b(aten.sum.dim_IntList, b(aten.mul.Tensor, x, b(aten.permute.default, y, [0, 2, 1])), [2], True)
    if rows == 1 and columns * inner <= SMALL_MATRIX:
        return b(aten.sum.dim_IntList, b(aten.mul.Tensor, b(aten.permute.default, x, [0, 2, 1]), y), [1], True)
    laid_out = _laid_out(b, x, y)
    return NotImplemented if laid_out is None else b(aten.bmm.default, *laid_out)


@decomposes(aten.baddbmm.default)
def _baddbmm(b: Builder, into: fx.Node, x: fx.Node, y: fx.Node, **factors: Any) -> Any:
    """The same of matrices that lie as a library reads them."""
    laid_out = _laid_out(b, x, y)
    return NotImplemented if laid_out is None else b(aten.baddbmm.default, into, *laid_out, **factors)


def _laid_out(b: Builder, x: fx.Node, y: fx.Node) -> list[fx.Node] | None:
    """Operands of a batched product, moved to where a library reads them: ATen would copy them one by one.

    None where they lie well, or are so small that ATen calls no library.
    """
    _, rows, inner = val(x).shape
    sizes = (rows, inner, val(y).shape[2])
    if device(x).type != "cpu" or not all(isinstance(size, int) for size in sizes) or prod(sizes) < FEW_TERMS:
        return None
    if _lies_well(x) and _lies_well(y):
        return None
    return [m if _lies_well(m) else b(aten.clone.default, m, memory_format=torch.contiguous_format) for m in (x, y)]


def _lies_well(x: fx.Node) -> bool:
    """Whether the rows or the columns of each matrix are one behind the other or apart, as far as is known."""
    (_, rows, columns), (_, down, across) = val(x).shape, val(x).stride()
    if not (isinstance(down, int) and isinstance(across, int)):
        return True
    return (across == 1 and down >= columns) or (down == 1 and across >= rows)


def _is_shared(y: fx.Node) -> bool:
    """Whether all matrices of a batch are one: what `matmul` makes of a matrix that needs no gradient."""
    return val(y).stride(0) == 0 and isinstance(val(y).shape[0], int) and val(y).shape[0] > 1


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
