"""Sizes and strides as pure functions of ints: what broadcasts, what is dense, how ATen lays out a result.

Imports nothing but torch, so that capture has it without the ATen tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

Ints: TypeAlias = tuple[int, ...]


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """The shape that all broadcast to; None when they do not."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return tuple(first)
    common = [1] * max(map(len, shapes))
    for shape in shapes:
        lead = len(common) - len(shape)
        for dim, size in enumerate(shape, lead):
            if size != 1:
                if common[dim] not in (1, size):
                    return None
                common[dim] = size
    return tuple(common)


def contiguous_strides(size: Sequence[int]) -> Ints:
    """Row-major strides, as torch gives them to a new tensor."""
    return strides_in(range(len(size) - 1, -1, -1), size)


def strides_in(order: Iterable[int], size: Sequence[int]) -> Ints:
    """Strides of a dense tensor whose dimensions lie in memory in this order, the innermost first."""
    strides, step = [1] * len(size), 1
    for dim in order:
        strides[dim] = step
        step *= max(size[dim], 1)
    return tuple(strides)


def channels_last_strides(size: Sequence[int]) -> Ints:
    """Strides of a new tensor of sizes (N, C, *spatial) whose channels lie innermost."""
    return strides_in(_channels_last_order(len(size)), size)


def _channels_last_order(rank: int) -> Ints:
    return (1, *range(rank - 1, 1, -1), 0)


def is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Row-major; strides of dimensions of size 1 do not count."""
    return _lies_in_order(size, stride, range(len(size) - 1, -1, -1))


def is_channels_last(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Dense with the channels innermost, of 4 or 5 dimensions."""
    return len(size) in (4, 5) and _lies_in_order(size, stride, _channels_last_order(len(size)))


def suggests_channels_last(size: Sequence[int], stride: Sequence[int]) -> bool:
    """ATen's guess at the format of 4 or 5 dimensions, dense or not; what is ambiguous counts as row-major."""
    if len(size) not in (4, 5) or stride[1] == 0:
        return False
    low = 0
    for dim in _channels_last_order(len(size)):
        if size[dim] == 0 or stride[dim] < low or (dim == 0 and low == stride[1]):
            return False
        low = stride[dim] * max(size[dim], 1)
    return True


def _lies_in_order(size: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    if 0 in size:
        return True
    step = 1
    for dim in order:
        if size[dim] != 1:
            if stride[dim] != step:
                return False
            step *= size[dim]
    return True


def dense_strides(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in memory in the same order."""
    return strides_in(reversed(memory_order(size, stride)), size)


def memory_order(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions by falling stride, outermost first; ties keep their order, size-1 dimensions stay in place."""
    wide = [d for d in range(len(size)) if size[d] != 1]
    ranked = iter(sorted(wide, key=lambda d: (-stride[d], d)))
    return tuple(d if size[d] == 1 else next(ranked) for d in range(len(size)))


def lies_densely(tensor: torch.Tensor) -> bool:
    """Whether a tensor is as `is_dense` says of its layout."""
    return is_dense(tuple(tensor.shape), tensor.stride())


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Non-overlapping and without holes."""
    if 0 in size:
        return True
    expected = 1
    for dim in sorted(range(len(size)), key=lambda d: (stride[d], size[d])):
        if size[dim] == 1:
            continue
        if stride[dim] != expected:
            return False
        expected *= size[dim]
    return True


def preserved_strides(size: Ints, stride: Ints) -> Ints:
    """Strides of a copy in memory format "preserve": its own when dense, else of a dense tensor in the same order."""
    if is_dense(size, stride):
        return stride
    return strides_in(_iteration_order(size, (stride,)), size)


def overlaps(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Two elements may lie at one place (the cheap, safe test: sorted strides must each clear what lies below)."""
    if 0 in size:
        return False
    reach = 0
    for dim in sorted(range(len(size)), key=lambda d: stride[d]):
        if size[dim] == 1:
            continue
        if stride[dim] <= reach:
            return True
        reach += stride[dim] * (size[dim] - 1)
    return False


def elements_spanned(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from a tensor's first to its last, both counted; none where it is empty.

    Arguments:
        size: of each dimension.
        stride: of each dimension, none negative; in elements (of a numpy array in bytes: then the result is the number
            of the last element's first byte, counted from 1).
    """
    return 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0


def meet(one: Sequence[tuple[int, int]], two: Sequence[tuple[int, int]], distance: int) -> bool:
    """Whether two tensors of (size, stride) by dimension, the second so far behind the first, may share an element."""
    if any(not size for size, _ in (*one, *two)):
        return False
    most: dict[int, int] = {}  # stride -> how often it can be taken, forwards in one, backwards in the other
    for size, step in (*one, *two):
        if step and size > 1:
            most[step] = most.get(step, 0) + size - 1
    target = distance + sum((size - 1) * step for size, step in two)
    return _adds_up(sorted(most.items(), reverse=True), target, [_MOST_TRIES])


_MOST_TRIES = 1000


def _adds_up(steps: list[tuple[int, int]], target: int, left: list[int]) -> bool:
    """Whether steps, each taken at most so often, may add up to `target`; True when it takes too long to tell."""
    if not steps or target == 0:
        return target == 0
    left[0] -= 1
    if left[0] < 0:
        return True
    (step, most), *rest = steps
    if target < 0 or target % math.gcd(*[each for each, _ in steps]):
        return False
    reach = sum(each * times for each, times in rest)
    low, high = max(0, -((reach - target) // step)), min(most, target // step)
    return any(_adds_up(rest, target - step * times, left) for times in range(low, high + 1))


# ---------------------------------------------------------------------- elementwise results (TensorIterator)


def iterator_strides(size: Ints, operands: Sequence[tuple[Ints, Ints] | None]) -> Ints:
    """Strides that ATen's elementwise kernels give a result.

    Arguments:
        size: of the result, what the operands broadcast to.
        operands: (sizes, strides) of each; None is a number.
    """
    tensors = [operand for operand in operands if operand is not None]
    if len(tensors) == len(operands) and all(own == size for own, _ in tensors):
        if all(is_contiguous(own, stride) for own, stride in tensors):
            return contiguous_strides(size)
        if len(size) == 4 and all(is_channels_last(own, stride) for own, stride in tensors):
            return channels_last_strides(size)
        first = tensors[0][1]
        if all(stride == first for _, stride in tensors) and is_dense(size, first):
            return first
    order = _iteration_order(size, [_broadcast_strides(own, stride, size) for own, stride in tensors])
    if order == list(range(len(size) - 1, -1, -1)):
        return contiguous_strides(size)
    strides = [0] * len(size)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= size[dim]  # in this order ATen counts a size of 0 as such
    return tuple(strides)


def _broadcast_strides(own: Ints, stride: Ints, size: Ints) -> list[int]:
    """Strides over the broadcast shape: 0 where the tensor is repeated."""
    lead = len(size) - len(own)
    return [0] * lead + [0 if n == 1 and size[lead + d] != 1 else s for d, (n, s) in enumerate(zip(own, stride))]


def _iteration_order(size: Ints, operands: Sequence[Sequence[int]]) -> list[int]:
    """Dimensions, fastest first, as an insertion sort by the operands' strides leaves them."""
    order = list(range(len(size) - 1, -1, -1))
    for start in range(1, len(order)):
        at = start
        for below in range(start - 1, -1, -1):
            outcome = _compare(order[below], order[at], size, operands)
            if outcome > 0:
                order[below], order[at] = order[at], order[below]
                at = below
            elif outcome < 0:
                break
    return order


def _compare(a: int, b: int, size: Ints, operands: Sequence[Sequence[int]]) -> int:
    """1: the dimensions are to be exchanged, -1: they are in order, 0: nothing decides."""
    for stride in operands:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return -1 if stride[a] < stride[b] else 1
        if size[a] > size[b]:
            return 1
    return 0
