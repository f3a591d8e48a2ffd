"""Stand-ins for results: plain meta tensors. One that requires grad is not a leaf, as in eager."""

from __future__ import annotations

import functools

import torch

from argand.graph.metadata.strides import Ints, contiguous_strides

_META = torch.device("meta")

contiguous = functools.lru_cache(maxsize=4096)(contiguous_strides)


def new(shape: Ints, strides: Ints | None, dtype: torch.dtype, requires_grad: bool = False) -> torch.Tensor:
    """A meta tensor; when it requires grad, it is the result of an operation."""
    if strides is None:
        strides = contiguous(shape)
    if requires_grad and (dtype.is_floating_point or dtype.is_complex):
        return torch.empty_strided(shape, strides, dtype=dtype, device=_META, requires_grad=True).clone()
    return torch.empty_strided(shape, strides, dtype=dtype, device=_META)


def needs_grad(*operands: object) -> bool:
    """Whether autograd would record an operation on these, or lists of these."""
    if not torch.is_grad_enabled():
        return False
    return any(
        isinstance(t, torch.Tensor) and t.requires_grad
        for operand in operands
        for t in (operand if isinstance(operand, tuple | list) else (operand,))
    )
