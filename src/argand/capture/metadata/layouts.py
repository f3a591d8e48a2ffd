"""Sizes, strides and dtypes of results, computed without running a kernel: what eager's TensorIterator decides.

Results are plain meta tensors. A result that requires grad is not a leaf, as in eager. Layout questions are pure
functions of shapes and strides and are remembered.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from argand.graph.metadata.strides import (
    Ints,
    broadcast_shape,
    contiguous_strides,
    is_contiguous,
    iterator_strides,
    preserved_strides,
)

_empty_strided = torch.empty_strided
_META = torch.device("meta")
_grad_enabled = torch.is_grad_enabled


class Unknown(Exception):
    """No rule applies: torch's own meta kernel decides."""


class Misfit(Exception):
    """Eager raises for these arguments, where torch's meta kernel would not."""


contiguous = functools.lru_cache(maxsize=4096)(contiguous_strides)


@functools.lru_cache(maxsize=4096)
def broadcast(shapes: tuple[Ints, ...]) -> Ints:
    """The common shape.

    Raises:
        Unknown: they do not broadcast; torch says it better.
    """
    made = broadcast_shape(shapes)
    if made is None:
        raise Unknown
    return made


@functools.lru_cache(maxsize=8192)
def pointwise_layout(operands: tuple[tuple[Ints, Ints] | None, ...]) -> tuple[Ints, Ints]:
    """(shape, strides) of the result of a pointwise operation on operands of these (shape, strides); None is a number.

    Raises:
        Unknown: shapes that do not broadcast.
    """
    shape = broadcast(tuple(operand[0] for operand in operands if operand is not None))
    return shape, iterator_strides(shape, operands)


preserved = functools.lru_cache(maxsize=4096)(preserved_strides)
"""Strides of `empty_like`/`clone` with memory_format=preserve_format."""


def new(shape: Ints, strides: Ints | None, dtype: torch.dtype, requires_grad: bool = False) -> torch.Tensor:
    """A meta tensor; when it requires grad, it is the result of an operation."""
    if strides is None:
        strides = contiguous(shape)
    if requires_grad and (dtype.is_floating_point or dtype.is_complex):
        return _empty_strided(shape, strides, dtype=dtype, device=_META, requires_grad=True).clone()
    return _empty_strided(shape, strides, dtype=dtype, device=_META)


def needs_grad(*operands: Any) -> bool:
    """Whether autograd would record an operation on these."""
    if not _grad_enabled():
        return False
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in operands)


def normalize_dim(dim: Any, rank: int) -> int:
    """A dim counted from the front.

    Raises:
        Unknown: not an int, or out of range.
    """
    if type(dim) is not int:
        raise Unknown
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise Unknown
    return dim % limit


def normalize_dims(dim: Any, rank: int) -> tuple[int, ...]:
    """Dims of a reduction: None and () mean all."""
    if dim is None or (isinstance(dim, tuple | list) and len(dim) == 0):
        return tuple(range(rank))
    dims = (dim,) if type(dim) is int else dim
    if not isinstance(dims, tuple | list):
        raise Unknown
    found = tuple(normalize_dim(d, rank) for d in dims)
    if len(set(found)) != len(found):
        raise Unknown
    return found


def reduced_shape(shape: Ints, dims: tuple[int, ...], keepdim: bool) -> Ints:
    """Shape after reducing over `dims`."""
    if keepdim:
        return tuple(1 if i in dims else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in dims)


@functools.lru_cache(maxsize=4096)
def reduction_strides(shape: Ints, strides: Ints, dims: tuple[int, ...], keepdim: bool) -> Ints:
    """Strides of a TensorIterator reduction: the input's order of dims without the reduced ones."""
    if 0 in shape:
        raise Unknown
    out = reduced_shape(shape, dims, keepdim)
    if is_contiguous(shape, strides) and all(t == c for t, c in zip(strides, contiguous(shape))):
        return contiguous(out)
    raise Unknown


def numel(shape: Ints) -> int:
    return math.prod(shape)
