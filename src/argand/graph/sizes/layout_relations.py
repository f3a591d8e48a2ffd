"""What of a tensor's layout decides about others: which of its dimensions lies outside of which, and which two are one.

Results of elementwise operations are laid out by the order of their operands' strides (by sizes, where strides are
equal), and a view is contiguous, or can be flattened, where one stride is another times a size. What varies may change
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from argand.graph.sizes.expr import Expr, as_expr, exact_divide, product
from argand.graph.sizes.relations import Relation, at_least

Dims: TypeAlias = "Sequence[Expr | int]"


def layout_relations(size: Dims, stride: Dims, sizes: Sequence[int], strides: Sequence[int]) -> Iterator[Relation]:
    """The conditions under which a tensor of these sizes and strides lies in memory as it does in one call.

    What is equal there by coincidence is not among them: whoever asks sees that it is not so at other sizes.

    Arguments:
        size: expressions, at least 2 where they vary; stride: likewise, at least 1.
        sizes: their values in the call; strides: likewise.
    """
    dims = [dim for dim, n in enumerate(sizes) if n != 1 and strides[dim] != 0]
    ranked = sorted(dims, key=lambda dim: (-strides[dim], -sizes[dim], dim))
    for outer, inner in pairwise(ranked):
        gap, tied = as_expr(stride[outer]) - stride[inner], strides[outer] == strides[inner]
        if gap == 0:
            gap, tied = as_expr(size[outer]) - size[inner], sizes[outer] == sizes[inner]
        if not tied and not _certain(gap):
            yield Relation("ge", gap - 1)
    for outer, inner in dict.fromkeys((*pairwise(dims), *pairwise(ranked))):
        gap = as_expr(stride[outer]) - as_expr(size[inner]) * stride[inner]
        if strides[outer] != sizes[inner] * strides[inner] and not _certain(gap):
            yield Relation("ne", gap)


def _certain(gap: Expr) -> bool:
    """Whether a difference of products of positive numbers always has one sign, and never is 0."""
    common = list(gap.poly[0][0]) if gap.poly else []
    for monomial, _ in gap.poly[1:]:
        rest = list(monomial)
        common = [atom for atom in common if atom in rest and not rest.remove(atom)]  # type: ignore[func-returns-value]
    part = exact_divide(gap, product(common)) if common else gap
    return part is not None and (at_least(part, 1) or at_least(-part, 1))
