"""Products of matrices: small ones as loops, others with their operands where a library reads them fast."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, device, val
from argand.passes.layout import reshape

SMALL_MATRIX = 1 << 16  # elements; a matrix that is read once, by a library whose call costs as much as reading it
FEW_TERMS = 400  # of a product of matrices that ATen computes without a library, wherever they lie
FEW_COLUMNS = 12  # of a result for which a library has no kernels of its own
FEWEST_COLUMNS = 4  # up to which the transposed product takes half of the time wherever the operands lie
LARGE_MATRIX = 1 << 14  # elements of a left side: with fewer, the call costs as much as the product


@decomposes(aten.mm.default)
def _mm(b: Builder, x: fx.Node, y: fx.Node) -> Any:
    """Of a large matrix and few columns, the transposed product, or of columns that lie one behind the other."""
    return NotImplemented if device(x).type != "cpu" else _of_few_columns(b, aten.mm.default, x, y)


@decomposes(aten.addmm.default)
def _addmm(b: Builder, bias: fx.Node, x: fx.Node, y: fx.Node, **factors: Any) -> Any:
    """The same, and a sum."""
    if device(x).type != "cpu" or factors:
        return NotImplemented
    product = _of_few_columns(b, aten.mm.default, x, y)
    return NotImplemented if product is NotImplemented else b(aten.add.Tensor, product, bias)


@decomposes(aten.dot.default)
def _dot(b: Builder, x: fx.Node, y: fx.Node) -> Any:
    """A sum that is fused with what it adds up."""
    if val(x).dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        return NotImplemented
    return b(aten.sum.default, b(aten.mul.Tensor, x, y))


@decomposes(aten.vdot.default)
def _vdot(b: Builder, x: fx.Node, y: fx.Node) -> Any:
    """The same with the first one's conjugates."""
    return _dot(b, b(aten.conj_physical.default, x) if val(x).dtype.is_complex else x, y)


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
    return _of_few_columns(b, aten.bmm.default, x, y) if laid_out is None else b(aten.bmm.default, *laid_out)


@decomposes(aten.baddbmm.default)
def _baddbmm(b: Builder, into: fx.Node, x: fx.Node, y: fx.Node, **factors: Any) -> Any:
    """The same of matrices that lie as a library reads them."""
    laid_out = _laid_out(b, x, y)
    return NotImplemented if laid_out is None else b(aten.baddbmm.default, into, *laid_out, **factors)


def _of_few_columns(b: Builder, product: Any, x: fx.Node, y: fx.Node) -> Any:
    """A large matrix, or a batch of them, times a few columns.

    MKL takes 4 to 30 times as long as for the same terms in another order where the matrix lies transposed, and where
    the columns lie side by side.
    """
    *_, rows, inner = val(x).shape
    columns, (*_, down, across), (*_, apart) = val(y).shape[-1], val(x).stride(), val(y).stride()
    known = all(isinstance(each, int) for each in (rows, inner, columns, down, across, apart))
    if not known or val(x).dtype not in (torch.float32, torch.float64) or not 1 < columns <= FEW_COLUMNS < rows:
        return NotImplemented
    if inner < 2 or rows * inner < LARGE_MATRIX:
        return NotImplemented
    lies_transposed, side_by_side = down == 1 and across >= rows, apart == 1
    if lies_transposed or (across == 1 and columns <= FEWEST_COLUMNS):
        few = _transposed(b, y)
        few = _contiguous(b, few) if side_by_side and not lies_transposed else few
        return _contiguous(b, _transposed(b, b(product, few, _transposed(b, x))))
    if across == 1 and side_by_side:
        return b(product, x, _transposed(b, _contiguous(b, _transposed(b, y))))
    return NotImplemented


def _transposed(b: Builder, x: fx.Node) -> fx.Node:
    """A view of matrices."""
    dims = val(x).dim()
    return b(aten.permute.default, x, [*range(dims - 2), dims - 1, dims - 2])


def _contiguous(b: Builder, x: fx.Node) -> fx.Node:
    """A copy whose rows lie one behind the other."""
    return b(aten.clone.default, x, memory_format=torch.contiguous_format)


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
    return [m if _lies_well(m) else _contiguous(b, m) for m in (x, y)]


def _lies_well(x: fx.Node) -> bool:
    """Whether the rows or the columns of each matrix are one behind the other or apart, as far as is known."""
    (_, rows, columns), (_, down, across) = val(x).shape, val(x).stride()
    if not (isinstance(down, int) and isinstance(across, int)):
        return True
    return (across == 1 and down >= columns) or (down == 1 and across >= rows)


def _is_shared(y: fx.Node) -> bool:
    """Whether all matrices of a batch are one: what `matmul` makes of a matrix that needs no gradient."""
    return val(y).stride(0) == 0 and isinstance(val(y).shape[0], int) and val(y).shape[0] > 1
