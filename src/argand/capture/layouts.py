"""Sizes, strides and dtypes of results, computed without running a kernel: what eager's TensorIterator decides.

Results are plain meta tensors. A result that requires grad is not a leaf, as in eager. Layout questions are pure
functions of shapes and strides and are remembered.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import torch

from argand.graph.broadcasting import broadcast_shape

Ints: TypeAlias = tuple[int, ...]

_empty_strided = torch.empty_strided
_result_type = torch.result_type
_META = torch.device("meta")
_grad_enabled = torch.is_grad_enabled


class Unknown(Exception):
    """No rule applies: torch's own meta kernel decides."""


@functools.lru_cache(maxsize=4096)
def contiguous(shape: Ints) -> Ints:
    """Strides of a contiguous tensor, as torch gives them to a new one."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


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


def _swap(perm_a: int, perm_b: int, operands: list[list[int]], shape: Ints) -> int:
    """1: dims are to be exchanged, -1: in order, 0: nothing decides."""
    for strides in operands:
        a, b = strides[perm_a], strides[perm_b]
        if a == 0 or b == 0:
            continue
        if a < b:
            return -1
        if a > b or shape[perm_a] > shape[perm_b]:
            return 1
    return 0


@functools.lru_cache(maxsize=8192)
def pointwise_layout(operands: tuple[tuple[Ints, Ints], ...]) -> tuple[Ints, Ints]:
    """(shape, strides) of the result of a pointwise operation on operands of these (shape, strides).

    Raises:
        Unknown: shapes that do not broadcast, or an empty result.
    """
    shape = broadcast(tuple(shape for shape, _ in operands))
    if 0 in shape:
        raise Unknown
    if all(s == shape for s, _ in operands):
        if all(_is_contiguous(s, t) for s, t in operands):
            return shape, contiguous(shape)
        first = operands[0][1]
        if all(t == first for _, t in operands) and _is_dense(shape, first):
            if not all(_is_channels_last(s, t) for s, t in operands):
                return shape, first
    rank = len(shape)
    expanded = []
    for own, strides in operands:
        offset = rank - len(own)
        expanded.append(
            [0] * offset + [0 if own[i] == 1 and shape[offset + i] != 1 else strides[i] for i in range(len(own))]
        )
    perm = list(range(rank - 1, -1, -1))
    for i in range(1, rank):
        at = i
        for j in range(i - 1, -1, -1):
            order = _swap(perm[j], perm[at], expanded, shape)
            if order > 0:
                perm[j], perm[at] = perm[at], perm[j]
                at = j
            elif order < 0:
                break
    out = [0] * rank
    step = 1
    for dim in perm:
        out[dim] = step
        step *= shape[dim]
    return shape, tuple(out)


def channels_last(shape: Ints) -> Ints:
    """Strides of a new 4-d tensor in NHWC order."""
    _, channels, height, width = shape
    return (channels * height * width, 1, width * channels, channels)


def _is_contiguous(shape: Ints, strides: Ints) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _is_channels_last(shape: Ints, strides: Ints) -> bool:
    order: Ints
    if len(shape) == 4:
        order = (1, 3, 2, 0)
    elif len(shape) == 5:
        order = (1, 4, 3, 2, 0)
    else:
        return False
    step = 1
    for dim in order:
        if shape[dim] != 1:
            if strides[dim] != step:
                return False
            step *= shape[dim]
    return True


def _is_dense(shape: Ints, strides: Ints) -> bool:
    """Non-overlapping and dense."""
    step = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides) if s != 1):
        if stride != step:
            return False
        step *= size
    return True


@functools.lru_cache(maxsize=4096)
def preserved(shape: Ints, strides: Ints) -> Ints:
    """Strides of `empty_like`/`clone` with memory_format=preserve_format."""
    if 0 in shape or _is_dense(shape, strides):
        return strides
    # the pointwise rule on one operand
    return pointwise_layout(((shape, strides),))[1]


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
    if _is_contiguous(shape, strides) and all(t == c for t, c in zip(strides, contiguous(shape))):
        return contiguous(out)
    raise Unknown


def numel(shape: Ints) -> int:
    return math.prod(shape)
