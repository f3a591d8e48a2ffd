"""Positions in sorted sequences: searchsorted and bucketize, by halving a range as often as its length needs.

What is looked at is what eager's kernels look at, so that sequences that are not sorted have eager's results, too.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.graph.sizes.expr import Const, Expr, as_int
from argand.ir.loops import Value
from argand.lower.context import Context, math_dtype
from argand.lower.elementwise import number_in
from argand.lower.lowerings.places.indexing import INDEX_DTYPES, INLINE_COST
from argand.lower.lowerings.pointwise import refuse
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

LONGEST = 1 << 30
STEP_COST = 8  # of halving a range once


def _search(ctx: Context, sequence: Tensor, value: Tensor | float, right: bool, sorter: Tensor | None = None) -> Tensor:
    """For each element of `value`, or for a number, its place in the last dimension of `sequence`."""
    count = as_int(sequence.size[-1]) if sequence.ndim else None
    refuse(count is None or not 0 < count < LONGEST, "a search among how many is not known")
    refuse(torch.bool in (sequence.dtype, getattr(value, "dtype", None)), "a search among bools")
    assert count is not None  # checked above
    common = _common(sequence, value)
    read = [sequence] if sorter is None else [sequence, sorter]
    for each in read:
        if each.cost >= INLINE_COST:
            ctx.realise(each)

    def load(ops: Recorder, index: Index) -> Value:
        lead = index[:-1] if sequence.ndim > 1 else ()
        wanted = ops.constant(number_in(value, common), common) if not isinstance(value, Tensor) else None
        if wanted is None:
            assert isinstance(value, Tensor)  # it is no number
            wanted = ops.to_dtype(value.load(ops, index), common)

        def element(place: Value) -> Value:
            at = _at(ops, place, count)
            if sorter is not None:
                order = ops.to_dtype(sorter.load(ops, (*lead, at)), torch.int64)
                at = ops.indirect_var(order, sequence.size[-1], False)
            return ops.to_dtype(sequence.load(ops, (*lead, at)), common)

        kind = "gt" if right else "ge"
        return ops.to_dtype(_halved(ops, count, lambda place: ops.compare(kind, element(place), wanted)), ctx.val.dtype)

    steps = count.bit_length()
    tensors = [*read, value] if isinstance(value, Tensor) else read
    return ctx.lazy(load, tensors, cost=STEP_COST * steps, count=8 * steps)


def _common(sequence: Tensor, value: Tensor | float) -> torch.dtype:
    """In what values are compared."""
    refuse(not isinstance(value, (Tensor, int, float)), "a search for a number that varies")

    def like(x: Tensor) -> torch.Tensor:
        return torch.empty([1] * x.ndim, dtype=x.dtype, device="meta")

    return math_dtype(torch.result_type(like(sequence), like(value) if isinstance(value, Tensor) else value))


def _at(ops: Recorder, place: Value, count: int) -> Expr:
    """A position, which a search that has ended may have moved past the end."""
    inside = ops.minimum(place, ops.constant(count - 1, torch.int32))
    return ops.indirect_var(ops.to_dtype(inside, torch.int64), Const(count), False)


def _halved(ops: Recorder, count: int, reached: Any) -> Value:
    """The first of `count` places where `reached(place)`, if those are the last ones."""
    one = ops.constant(1, torch.int32)
    start, end = ops.constant(0, torch.int32), ops.constant(count, torch.int32)
    left = count  # places at least that the range has
    for _ in range(count.bit_length()):
        middle = ops.rshift(ops.add(start, end), one)
        behind = ops.logical_not(reached(middle))
        end = ops.where(behind, end, middle)
        if left < 1:
            behind = ops.logical_and(behind, ops.lt(start, end))
        start = ops.where(behind, ops.add(middle, one), start)
        left = (left - 1) // 2
    return start


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    ctx: Context,
    sequence: Tensor,
    value: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    refuse(sorter is not None and sorter.dtype not in INDEX_DTYPES, "an order of that dtype")
    return _search(ctx, sequence, value, right or side == "right", sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    ctx: Context, value: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _search(ctx, boundaries, value, right)
