"""Size and stride arithmetic on expressions: layouts, and views of strided buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from argand.graph.sizes.expr import ONE, ZERO, Expr, Sym, as_int, evaluate, exact_divide
from argand.ir.loops import TensorRef

Sizes = tuple[Expr, ...]
DEFAULT_HINT = 64  # stands for a size symbol wherever a guess is enough


def hint(expr: Expr, hints: Mapping[str, int] | None = None) -> int:
    """A likely value of a size, for heuristics only."""
    known = as_int(expr)
    if known is not None:
        return known
    env = {atom.name: (hints or {}).get(atom.name, DEFAULT_HINT) for atom in expr.free if isinstance(atom, Sym)}
    return int(evaluate(expr, env))


def contiguous_stride(size: Sizes) -> Sizes:
    """Strides of a C-contiguous tensor, as eager gives them (an empty dimension counts as one)."""
    strides = []
    step: Expr = ONE
    for extent in reversed(size):
        strides.append(step)
        if extent != 0:
            step = step * extent
    return tuple(reversed(strides))


def stride_order(size: Sizes, stride: Sizes, hints: Mapping[str, int] | None = None) -> list[int]:
    """Dimensions from the greatest stride to the least, in logical order where strides tie."""
    weights = [(hint(step, hints), hint(extent, hints)) for extent, step in zip(size, stride)]
    # of two equal strides, the dimension of size one goes outside
    return sorted(range(len(size)), key=lambda d: (-weights[d][0], weights[d][1] != 1, d))


def is_dense(size: Sizes, stride: Sizes, hints: Mapping[str, int] | None = None) -> bool:
    """Whether the elements fill a piece of memory without gaps or overlaps."""
    expected: Expr = ONE
    for dim in reversed(stride_order(size, stride, hints)):
        if size[dim] == 1:
            continue
        if size[dim] == 0:
            return True
        if stride[dim] is not expected:
            return any(extent == 0 for extent in size)
        expected = expected * size[dim]
    return True


def dense_like(size: Sizes, stride: Sizes, hints: Mapping[str, int] | None = None) -> Sizes:
    """Dense strides with the same order of dimensions as `stride`."""
    result = list(stride)
    step: Expr = ONE
    for dim in reversed(stride_order(size, stride, hints)):
        result[dim] = step
        if size[dim] != 0:
            step = step * size[dim]
    return tuple(result)


@lru_cache(maxsize=1 << 12)
def reshape_stride(size: Sizes, stride: Sizes, new_size: Sizes) -> Sizes | None:
    """Strides that view `(size, stride)` as `new_size` without a copy; None when there are none."""
    if any(extent == 0 for extent in size):
        return stride if new_size == size else contiguous_stride(new_size)
    blocks: list[tuple[Expr, Expr]] = []  # (elements, inner stride) of maximal runs that are contiguous in themselves
    for extent, step in zip(size, stride):
        if extent == 1:
            continue
        if blocks and blocks[-1][1] is step * extent:
            blocks[-1] = (blocks[-1][0] * extent, step)
        else:
            blocks.append((extent, step))
    result: list[Expr] = []
    left, step = blocks.pop() if blocks else (ONE, ONE)
    for extent in reversed(new_size):
        if extent == 1:
            result.append(step)  # any stride does; this is what eager reports
            continue
        if left == 1 and blocks:
            left, step = blocks.pop()
        result.append(step)
        rest = exact_divide(left, extent)
        if rest is None:
            return None
        left, step = rest, step * extent
    if left != 1 or blocks:
        return None
    return tuple(reversed(result))


@lru_cache(maxsize=1 << 12)
def reshape_groups(size: Sizes, new_size: Sizes) -> list[tuple[list[int], list[int]]] | None:
    """Pair runs of old dimensions with runs of new dimensions of the same number of elements.

    Dimensions of size one belong to no group. None when an element count cannot be matched (symbolic sizes).
    """
    old = [dim for dim, extent in enumerate(size) if extent != 1]
    new = [dim for dim, extent in enumerate(new_size) if extent != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [old[i]], [new[j]]
        have, want = size[old[i]], new_size[new[j]]
        i, j = i + 1, j + 1
        while have is not want:
            if i < len(old) and (exact_divide(have, want) is None or j == len(new)):
                left.append(old[i])
                have, i = have * size[old[i]], i + 1
            elif j < len(new):
                right.append(new[j])
                want, j = want * new_size[new[j]], j + 1
            else:
                return None
        groups.append((left, right))
    return groups if i == len(old) and j == len(new) else None


def reshape_index(
    groups: list[tuple[list[int], list[int]]], size: Sizes, new_size: Sizes, index: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """The index into a tensor of `size` that an index into its reshape to `new_size` stands for."""
    result: list[Expr] = [ZERO] * len(size)
    for old, new in groups:
        if len(old) == len(new) == 1:
            result[old[0]] = index[new[0]]
            continue
        flat: Expr = ZERO
        for dim in new:
            flat = flat * new_size[dim] + index[dim]
        for dim in reversed(old[1:]):
            result[dim] = flat % size[dim]
            flat = flat // size[dim]
        result[old[0]] = flat
    return tuple(result)


def permute_ref(ref: TensorRef, dims: Sequence[int]) -> TensorRef:
    """`ref` with its dimensions in another order."""
    return TensorRef(
        ref.buffer, tuple(ref.size[d] for d in dims), tuple(ref.stride[d] for d in dims), ref.offset, ref.dtype
    )
