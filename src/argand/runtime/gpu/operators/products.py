"""Matrix products that GPUs' libraries are slow at as they are."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

MULTIPLE = 8  # elements of 16 bits: tensor cores are fed by 16 bytes at a time


def padded_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
    """`left @ right`, or `bias + left @ right` where three operands are given, in `out`.

    Rows that do not begin at multiples of 16 bytes keep the library from its fast kernels: an output layer of 50,257
    words takes eight times as long as one of 50,264. So the product is computed with zeros appended.

    Arguments:
        operands: matrices `left` (m, k) and `right` (k, n) of any strides, of 16-bit floats; before them a `bias` (n)
            or nothing.
        out: (m, n).
    """
    *bias, left, right = operands
    inner, columns = -left.shape[1] % MULTIPLE, -right.shape[1] % MULTIPLE
    left = pad(left, (0, inner)) if inner else aligned(left)
    if not inner and not columns:
        right = aligned(right)
    elif right.stride(0) == 1:  # a transposed weight stays one
        right = pad(right.t(), (0, inner, 0, columns)).t()
    else:
        right = pad(right, (0, columns, 0, inner))
    row = [pad(bias[0], (0, columns))] if bias and columns else bias
    if columns:
        product = torch.addmm(*row, left, right) if row else torch.mm(left, right)
        out.copy_(product[:, : out.shape[1]])
    elif row:
        torch.addmm(*row, left, right, out=out)
    else:
        torch.mm(left, right, out=out)


def aligned(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix`, or a copy of it whose rows (or columns, if these are contiguous) begin at multiples of 16 bytes."""
    by_columns = matrix.stride(0) == 1
    stored = matrix.t() if by_columns else matrix
    if stored.stride(1) != 1 or stored.stride(0) % MULTIPLE == 0:
        return matrix
    height, width = stored.shape
    padded = stored.new_empty(height, -(-width // MULTIPLE) * MULTIPLE)[:, :width].copy_(stored)
    return padded.t() if by_columns else padded
