"""Padding with what is inside: mirrored (reflection), or the last element (replication); and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from argand.graph.sizes.expr import ONE, Const, Expr, as_int
from argand.ir.loops import Value
from argand.lower.context import LOOP_DTYPES, Context, math_dtype
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.pools import MAX_TAPS, Place, added, both, tap, taps_of
from argand.lower.recorder import Recorder
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Index, Tensor
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

Move = Callable[[Recorder, Expr, Expr], Expr]  # a position that may be outside of a dimension of a size, moved into it


def _mirrored(ops: Recorder, at: Expr, size: Expr) -> Expr:
    low, high = ops.simplifier.bounds(at)
    last, extent = size - ONE, as_int(size)
    if high is not None and high <= 0:
        return -1 * at
    if low is not None and extent is not None and low >= extent - 1:
        return 2 * last - at
    value, end = ops.index_expr(at, torch.int64), ops.index_expr(last, torch.int64)
    return ops.indirect_var(ops.sub(end, ops.abs(ops.sub(end, ops.abs(value)))), size, False)


def _clamped(ops: Recorder, at: Expr, size: Expr) -> Expr:
    low, high = ops.simplifier.bounds(at)
    extent = as_int(size)
    if high is not None and high <= 0:
        return Const(0)
    if low is not None and extent is not None and low >= extent - 1:
        return size - ONE
    value, end = ops.index_expr(at, torch.int64), ops.index_expr(size - ONE, torch.int64)
    return ops.indirect_var(ops.minimum(ops.maximum(value, ops.constant(0, torch.int64)), end), size, False)


def _pads(given: Sequence[Any]) -> list[tuple[int, int]]:
    """What is added before and after each padded dimension, outermost first."""
    refuse(not all(type(pad) is int for pad in given), "pads that vary")
    return [(given[place], given[place + 1]) for place in range(len(given) - 2, -1, -2)]


def _padding(move: Move) -> Rule:
    def rule(ctx: Context, x: Tensor, given: Sequence[Any]) -> Tensor:
        refuse(x.dtype not in LOOP_DTYPES or any(extent == 0 for extent in x.size), "padding of nothing")
        pads = _pads(given)
        rank = len(pads)
        inner = x.size[-rank:]
        ctx.realise(x)

        def load(ops: Recorder, index: Index) -> Value:
            place = []
            for position, (before, _), size in zip(index[-rank:], pads, inner):
                at = position - before
                place.append(at if ops.simplifier.between(at, size) else move(ops, at, size))
            return x.load(ops, (*index[:-rank], *place))

        result = ctx.lazy(load, [x], cost=2 + 3 * rank, count=2 + 6 * rank)
        before, after = pads[-1]
        if before > 0 or after > 0:  # rows are stored in three parts, of which the middle one is a copy
            cuts = ([Const(before)] if before > 0 else []) + ([before + inner[-1]] if after > 0 else [])
            result.split = (x.ndim - 1, tuple(cuts))
        return result

    return rule


Sources = Callable[[Recorder, Expr, Expr, "tuple[int, int]"], list[Place]]


def _mirrors(ops: Recorder, at: Expr, size: Expr, pads: tuple[int, int]) -> list[Place]:
    """Where an element of a dimension stands in it when it is padded: at its place, and in both mirrors."""
    before, after = pads
    places: list[Place] = [(at + before, None)]
    value = ops.index_expr(at, torch.int64)
    last = as_int(size)
    low, high = ops.simplifier.bounds(at)
    if before and (low is None or low <= before):
        inside = ops.le(value, ops.constant(before, torch.int64))
        places.append((before - at, both(ops, inside, ops.gt(value, ops.constant(0, torch.int64)))))
    if after and (last is None or high is None or high >= last - 1 - after):
        end = ops.index_expr(size - ONE, torch.int64)
        inside = ops.ge(value, ops.sub(end, ops.constant(after, torch.int64)))
        places.append((before + 2 * (size - ONE) - at, both(ops, inside, ops.lt(value, end))))
    return places


def _copies(ops: Recorder, at: Expr, size: Expr, pads: tuple[int, int]) -> list[Place]:
    """Where an element of a dimension stands in it when it is padded: the first and the last stand outside, too."""
    before, after = pads
    places: list[Place] = [(at + before, None)]
    value = ops.index_expr(at, torch.int64)
    low, high = ops.simplifier.bounds(at)
    last = as_int(size)
    if before and (low is None or low <= 0):
        first = ops.eq(value, ops.constant(0, torch.int64))
        places += [(Const(number), first) for number in range(before)]
    if after and (last is None or high is None or high >= last - 1):
        end = ops.eq(value, ops.index_expr(size - ONE, torch.int64))
        places += [(size + (before + number), end) for number in range(after)]
    return places


@dataclass(frozen=True, slots=True)
class _Kind:
    """A way of padding.

    Arguments:
        move: where what stands outside of the dimension is taken from.
        sources: the places of an element in the padded dimension.
        terms: how many they are at most, for pads before and after.
        reach: how many elements from the end are taken for a pad.
    """

    move: Move
    sources: Sources
    terms: Callable[[tuple[int, int]], int]
    reach: Callable[[int], int]


_KINDS = {
    "reflection": _Kind(_mirrored, _mirrors, lambda pair: 1 + bool(pair[0]) + bool(pair[1]), lambda pad: pad + 1),
    "replication": _Kind(_clamped, _copies, lambda pair: 1 + pair[0] + pair[1], lambda pad: 1),
}


def _gradient(kind: _Kind) -> Rule:
    def rule(ctx: Context, grad: Tensor, x: Tensor, given: Sequence[Any]) -> Tensor:
        refuse(not is_float(grad) or any(extent == 0 for extent in grad.size), "padding of nothing")
        pads = _pads(given)
        refuse(any(pad < 0 for pair in pads for pad in pair), "pads that take away")
        count = prod(kind.terms(pair) for pair in pads)
        refuse(count > MAX_TAPS, "wide pads")
        rank, math = len(pads), math_dtype(grad.dtype)
        size = ctx.sizes(ctx.val.shape)
        ctx.realise(grad)

        def load(ops: Recorder, index: Index) -> Value:
            along = [kind.sources(ops, *one) for one in zip(index[-rank:], size[-rank:], pads)]
            parts = (tap(ops, grad, (*index[:-rank], *place), inside, 0.0) for place, inside in taps_of(ops, along))
            return ops.to_dtype(added(ops, parts, math), grad.dtype)

        result = ctx.lazy(load, [grad], cost=3 * count, count=5 * count)
        low, high = (kind.reach(pad) if pad else 0 for pad in pads[-1])
        extent = as_int(size[-1])
        if extent is not None and low + high < extent and low + high:
            cuts = ([Const(low)] if low else []) + ([Const(extent - high)] if high else [])
            result.split = (grad.ndim - 1, tuple(cuts))
        return result

    return rule


for _name, _kind in _KINDS.items():
    for _rank in (1, 2, 3):
        lowers(getattr(aten, f"{_name}_pad{_rank}d").default)(_padding(_kind.move))
        lowers(getattr(aten, f"{_name}_pad{_rank}d_backward").default)(_gradient(_kind))
