"""Tensors in other memory layouts: permuted, with holes, expanded, of size 1 or 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch


def reversed_dims(x: torch.Tensor) -> torch.Tensor:
    """The same values, first dimension innermost."""
    dims = list(range(x.dim()))[::-1]
    return x.permute(dims).contiguous().permute(dims)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if x.dim() == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() == 3 else x


def with_holes(x: torch.Tensor) -> torch.Tensor:
    """The same values in every second place of a larger tensor."""
    if not x.dim():
        return x
    large = x.new_empty((*x.shape, 2)).zero_()
    large[..., 0] = x
    return large[..., 0]


def whole(x: torch.Tensor) -> torch.Tensor:
    return x


def inside(x: torch.Tensor) -> torch.Tensor:
    """The same values in the middle of the rows of a larger tensor."""
    if not x.dim():
        return x
    large = x.new_empty((*x.shape[:-1], x.shape[-1] + 3)).zero_()
    large[..., 2:-1] = x
    return large[..., 2:-1]


def rotated(x: torch.Tensor) -> torch.Tensor:
    """The same values, the last dimension outermost in memory."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1) if x.dim() > 2 else reversed_dims(x)


def _repeated(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.narrow(dim, 0, 1).expand(x.shape) if x.shape[dim] else x


def expanded(x: torch.Tensor) -> torch.Tensor:
    """One row, repeated by a stride of 0."""
    return _repeated(x, 0) if x.dim() else x


def expanded_inside(x: torch.Tensor) -> torch.Tensor:
    """The first element of each row, repeated, of a tensor whose first dimension is innermost."""
    return _repeated(reversed_dims(x), -1) if x.dim() else x


def expanded_wholly(x: torch.Tensor) -> torch.Tensor:
    """One number, repeated along all dimensions."""
    return x.flatten()[:1].view([1] * x.dim()).expand(x.shape) if x.numel() else x


def one_row(x: torch.Tensor) -> torch.Tensor:
    """A first dimension of size 1 that keeps a larger tensor's stride."""
    return with_holes(x)[:1] if x.dim() and x.shape[0] else x


def one_column(x: torch.Tensor) -> torch.Tensor:
    """A last dimension of size 1 that keeps the outermost stride."""
    return reversed_dims(x)[..., :1] if x.dim() and x.shape[-1] else x


def idle_strides(x: torch.Tensor) -> torch.Tensor:
    """Any stride for dimensions of size 1."""
    return x.as_strided(x.shape, [7 if n == 1 else s for n, s in zip(x.shape, x.stride())])


def no_rows(x: torch.Tensor) -> torch.Tensor:
    return x[:0] if x.dim() else x


def no_columns(x: torch.Tensor) -> torch.Tensor:
    return reversed_dims(x)[..., :0] if x.dim() else x


Layout: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

LAYOUTS: tuple[Layout, ...] = (
    whole, reversed_dims, channels_last, with_holes, inside, rotated, expanded, expanded_inside, expanded_wholly,
    one_row, one_column, idle_strides, no_rows, no_columns,
)  # fmt: skip
"""Each gives a tensor of the same values in another layout, or one of another size, which an op may refuse."""
