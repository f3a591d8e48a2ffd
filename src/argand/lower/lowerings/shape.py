"""Ops that put tensors together or move their elements: cat, stack, padding, flips, repeats, writes into views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import torch

from argand.graph.sizes.expr import ONE, ZERO, Const, Expr, as_int
from argand.ir.loops import TensorRef, Value
from argand.lower.context import LOOP_DTYPES, Context, math_dtype
from argand.lower.elementwise import broadcaster, number_in
from argand.lower.lowerings.views import slice_start, wrap
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering, lowers
from argand.lower.tensor import Index, Tensor
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

INLINE_PARTS = 4  # a cat of more tensors than this is never computed inside its consumers
OUTSIDE: Final = "outside"
Mask = Value | Literal["outside"] | None


@dataclass(frozen=True, slots=True)
class InParts:
    """Stores a tensor part by part along its last dimension: between these places it is computed without masks."""

    cuts: tuple[Expr, ...]

    def __call__(self, ctx: Context, whole: Tensor) -> TensorRef:
        """As `Tensor.realiser`."""
        extent = as_int(whole.size[-1])
        cuts = sorted({cut for cut in map(as_int, self.cuts) if cut and extent and 0 < cut < extent})
        if cuts and whole.stride[-1] is ONE and all(as_int(cut) is not None for cut in self.cuts):
            whole.split = (whole.ndim - 1, tuple(map(Const, cuts)))
        ref = ctx.ref_of(ctx.new_buffer(whole.size, whole.stride, whole.dtype, whole.device))
        ctx.store(whole, ref, creates=True)
        return ref


def _index_value(ops: Recorder, expr: Expr) -> Value:
    return ops.index_expr(expr, torch.int64)


def _below(ops: Recorder, expr: Expr, limit: Expr) -> Value:
    return ops.lt(_index_value(ops, expr), _index_value(ops, limit))


def _at_least(ops: Recorder, expr: Expr, limit: Expr) -> Value:
    return ops.ge(_index_value(ops, expr), _index_value(ops, limit))


def zero_of(dtype: torch.dtype) -> Number:
    """The zero of a dtype, as a Python number."""
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


# --- cat


@lowers(aten.cat.default)
def cat(ctx: Context, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    # eager skips tensors of size (0,), whatever the shape of the others
    parts = [x for x in tensors if not (x.ndim == 1 and x.size[0] == 0)]
    if not parts:
        return ctx.lazy(lambda ops, index: ops.constant(zero_of(ctx.val.dtype), ctx.val.dtype), [])
    return joined(ctx, parts, wrap(dim, parts[0].ndim))


def joined(ctx: Context, parts: Sequence[Tensor], dim: int) -> Tensor:
    """`parts` one after another along `dim`, converted to the node's dtype."""
    dtype: torch.dtype = ctx.val.dtype
    starts: list[Expr] = []
    end: Expr = ZERO
    for x in parts:
        starts.append(end)
        end = end + x.size[dim]

    def load(ops: Recorder, index: Index) -> Value:
        math = math_dtype(dtype)
        result: Value | None = None
        for x, start in zip(parts, starts):
            position = index[dim] - start
            place = (*index[:dim], position, *index[dim + 1 :])
            if ops.simplifier.between(position, x.size[dim]):
                ops.folded = True
                return ops.to_dtype(x.load(ops, place), dtype)
            mask = _below(ops, position, x.size[dim])
            if start != 0:
                mask = ops.logical_and(_at_least(ops, index[dim], start), mask)

            def block(x: Tensor = x, place: Index = place) -> Value:
                return ops.to_dtype(ops.to_dtype(x.load(ops, place), dtype), math)

            piece = ops.masked(mask, block, zero_of(dtype))
            result = piece if result is None else ops.where(mask, piece, result)
        if result is None:
            raise NoLowering("a cat of nothing")
        return ops.to_dtype(result, dtype)

    def realise(ctx: Context, whole: Tensor) -> TensorRef:
        buffer = ctx.new_buffer(whole.size, whole.stride, dtype, whole.device)
        for number, (x, start) in enumerate(zip(parts, starts)):
            size = (*whole.size[:dim], x.size[dim], *whole.size[dim + 1 :])
            target = TensorRef(buffer.name, size, buffer.stride, start * buffer.stride[dim])
            converted = x if x.dtype is dtype else _converted(x, dtype)
            ctx.store(converted, target, creates=number == 0, origin=whole.origin)
        return ctx.ref_of(buffer)

    result = ctx.lazy(load, parts, cost=3 * len(parts), count=5 * len(parts))
    if len(parts) == 2 and dim == parts[0].ndim - 1 and all(x.size[dim] == 1 for x in parts):
        result.split = (dim, None)
        return result
    result.realiser = realise
    result.split = (dim, tuple(starts[1:]))
    if len(parts) > INLINE_PARTS:
        ctx.realise(result)
    return result


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    return Tensor(
        x.size,
        x.stride,
        dtype,
        x.device,
        loader=lambda ops, index: ops.to_dtype(x.load(ops, index), dtype),
        origin=x.origin,
    )


# --- padding


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(ctx: Context, x: Tensor, pad: Sequence[Any], value: Number = 0) -> Tensor:
    dtype = x.dtype
    number = number_in(value, dtype)
    math = math_dtype(dtype)
    before: list[Expr] = [ZERO] * x.ndim
    tested: list[int] = []
    for place in range(len(pad) // 2):
        dim = x.ndim - 1 - place
        before[dim] = ctx.expr(pad[2 * place])
        if pad[2 * place] != 0 or pad[2 * place + 1] != 0:
            tested.append(dim)
    size = x.size

    def load(ops: Recorder, index: Index) -> Value:
        place = tuple([position - skip for position, skip in zip(index, before)])
        mask: Value | None = None
        for dim in tested:
            if ops.simplifier.between(place[dim], size[dim]):
                continue
            low, high = ops.simplifier.bounds(place[dim])
            extent = as_int(size[dim])
            if (high is not None and high < 0) or (low is not None and extent is not None and low >= extent):
                ops.folded = True
                return ops.constant(number, dtype)
            for test in (_at_least(ops, place[dim], ZERO), _below(ops, place[dim], size[dim])):
                mask = test if mask is None else ops.logical_and(mask, test)
        if mask is None:
            return x.load(ops, place)
        return ops.to_dtype(ops.masked(mask, lambda: ops.to_dtype(x.load(ops, place), math), number), dtype)

    result = ctx.lazy(load, [x], cost=2 + 2 * len(tested), count=2 + 4 * len(tested))
    if tested == [x.ndim - 1] and result.size[-1] == 2:
        result.split = (x.ndim - 1, None)
    elif x.ndim - 1 in tested:
        result.realiser = InParts((before[-1], before[-1] + size[-1]))
    return result


# --- moves


def moved(ctx: Context, x: Tensor, place: Callable[[Recorder, Index], Index], cost: int = 1) -> Tensor:
    """`x` read at another index."""
    if x.dtype not in LOOP_DTYPES:
        raise NoLowering(f"loops do not compute with {x.dtype}")
    return ctx.lazy(lambda ops, index: x.load(ops, place(ops, index)), [x], cost=cost)


@lowers(aten.flip.default)
def flip(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    chosen = {wrap(dim, x.ndim) for dim in dims} if x.ndim else set()

    def place(ops: Recorder, index: Index) -> Index:
        return tuple([x.size[d] - 1 - index[d] if d in chosen else index[d] for d in range(x.ndim)])

    return moved(ctx, x, place)


def _backwards(amount: Expr, size: Expr) -> Expr:
    """`-amount % size`, without a remainder of a negative number, which C takes otherwise than Python."""
    known = as_int(amount)
    if known is None and as_int(size) is None:
        raise NoLowering("roll by an amount of unknown sign")
    if known is None or known < 0 or as_int(size) is not None:
        return (-amount) % size
    return size - amount % size


@lowers(aten.roll.default)
def roll(ctx: Context, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if not dims or any(extent == 0 for extent in x.size):
        raise NoLowering("roll of the flattened tensor")
    amounts: dict[int, Expr] = dict.fromkeys(range(x.ndim), ZERO)
    for shift, dim in zip(shifts, dims):
        amounts[wrap(dim, x.ndim)] = amounts[wrap(dim, x.ndim)] + ctx.expr(shift)

    back = [_backwards(amounts[d], x.size[d]) if amounts[d] != 0 else ZERO for d in range(x.ndim)]

    def place(ops: Recorder, index: Index) -> Index:
        return tuple([(p + back[d]) % x.size[d] if back[d] != 0 else p for d, p in enumerate(index)])

    return moved(ctx, x, place, cost=2)


@lowers(aten.linalg_cross.default)
def cross(ctx: Context, x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """(x × y)_i = x_i+1 y_i+2 - x_i+2 y_i+1"""
    if ctx.val.dtype not in (torch.float32, torch.float64) or not x.dtype is y.dtype is ctx.val.dtype:
        raise NoLowering(f"a cross product of {x.dtype} and {y.dtype}")
    size = ctx.sizes(ctx.val.shape)
    along = wrap(dim, len(size))
    places = broadcaster(ctx, x, size), broadcaster(ctx, y, size)

    def load(ops: Recorder, index: Index) -> Value:
        def component(which: int, shift: int) -> Value:
            shifted = (*index[:along], (index[along] + shift) % 3, *index[along + 1 :])
            return (x, y)[which].load(ops, places[which](shifted))

        first, second = ops.mul(component(0, 1), component(1, 2)), ops.mul(component(0, 2), component(1, 1))
        return ops.binary("sub", first, second)

    return ctx.lazy(load, [x, y], cost=4)


@lowers(aten.rot90.default)
def rot90(ctx: Context, x: Tensor, times: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    a, b = (wrap(dim, x.ndim) for dim in dims)

    if times % 4 == 0:
        return moved(ctx, x, lambda ops, index: index)
    if times % 4 == 2:
        return flip(ctx, x, [a, b])
    last_a, last_b = x.size[a] - 1, x.size[b] - 1

    def turned(ops: Recorder, index: Index) -> Index:
        result = list(index)
        if times % 4 == 1:
            result[a], result[b] = index[b], last_b - index[a]
        else:
            result[a], result[b] = last_a - index[b], index[a]
        return tuple(result)

    return moved(ctx, x, turned)


# --- writes into views of a tensor, as new tensors


def overlay(
    ctx: Context,
    x: Tensor,
    source: Tensor,
    inside: Callable[[Recorder, Index], tuple[Mask, Index]],
    size: Any,
    *also: Tensor,
) -> Tensor:
    """`source` where `inside` says so, else `x`.

    Arguments:
        inside: gives the mask (None: everywhere there) and source's index.
        size: that source is broadcast to.
        also: what `inside` loads.
    """
    dtype = x.dtype
    math = math_dtype(dtype)
    place_in = broadcaster(ctx, source, size)

    def load(ops: Recorder, index: Index) -> Value:
        mask, place = inside(ops, index)
        if isinstance(mask, str):
            ops.folded = True
            return x.load(ops, index)

        def block() -> Value:
            return ops.to_dtype(ops.to_dtype(source.load(ops, place_in(place)), dtype), math)

        if mask is None:
            return ops.to_dtype(block(), dtype)
        below = ops.to_dtype(x.load(ops, index), math)
        return ops.to_dtype(ops.where(mask, ops.masked(mask, block, zero_of(dtype)), below), dtype)

    return ctx.lazy(load, [x, source, *also], cost=6, count=10)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    ctx: Context, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    dim = wrap(dim, x.ndim)
    first = slice_start(ctx, x, dim, start)
    # the source may broadcast, so the slice says how long it is
    extent = getattr(x.size[dim], "value", None)
    if extent is None or isinstance(end, Expr) or isinstance(start, Expr):
        # a generalised graph has clamped the bounds: they lie between 0 and the size
        length = ((x.size[dim] if end is None else ctx.expr(end)) - first + (step - 1)) // step
    else:
        stop = extent if end is None else end
        stop = stop + extent if stop < 0 else min(stop, extent)
        length = ctx.expr(max(0, -(-(max(stop, 0) - int(str(first))) // step)))
    size = (*x.size[:dim], length, *x.size[dim + 1 :])

    def inside(ops: Recorder, index: Index) -> tuple[Mask, Index]:
        offset = index[dim] - first
        tests = []
        low, high = ops.simplifier.bounds(offset)
        extent = as_int(length)
        if (high is not None and high < 0) or (low is not None and extent is not None and low >= extent * step):
            return OUTSIDE, index
        if step == 1 and length is not x.size[dim] and ops.simplifier.between(offset, length):
            ops.folded = True
            return None, (*index[:dim], offset, *index[dim + 1 :])
        if first != 0:
            tests.append(_at_least(ops, index[dim], first))
        if not (first == 0 and step == 1 and length is x.size[dim]):
            tests.append(_below(ops, offset, length * step))
        if step != 1:
            # kept non-negative, where C and Python agree on the remainder
            phase = (index[dim] + ((-first) % step)) % step
            tests.append(ops.eq(_index_value(ops, phase), _index_value(ops, ZERO)))
        mask: Value | None = None
        for test in tests:
            mask = test if mask is None else ops.logical_and(mask, test)
        return mask, (*index[:dim], offset // step, *index[dim + 1 :])

    result = overlay(ctx, x, source, inside, size)
    known = x.realiser.cuts if isinstance(x.realiser, InParts) else ()
    if known or (step == 1 and dim == x.ndim - 1):
        result.realiser = InParts((*known, first, first + length) if dim == x.ndim - 1 else known)
    return result


@lowers(aten.select_scatter.default)
def select_scatter(ctx: Context, x: Tensor, source: Tensor, dim: int, position: Any) -> Tensor:
    dim = wrap(dim, x.ndim)
    at = ctx.expr(position)
    if isinstance(position, int) and position < 0:
        at = at + x.size[dim]

    def inside(ops: Recorder, index: Index) -> tuple[Value | None, Index]:
        mask = ops.eq(_index_value(ops, index[dim]), _index_value(ops, at))
        return mask, index[:dim] + index[dim + 1 :]

    return overlay(ctx, x, source, inside, x.size[:dim] + x.size[dim + 1 :])


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(ctx: Context, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = wrap(dim1, x.ndim), wrap(dim2, x.ndim)
    kept = [dim for dim in range(x.ndim) if dim not in (a, b)]

    def inside(ops: Recorder, index: Index) -> tuple[Value | None, Index]:
        mask = ops.eq(_index_value(ops, index[a] + offset), _index_value(ops, index[b]))
        return mask, (*(index[dim] for dim in kept), index[a] if offset >= 0 else index[b])

    return overlay(ctx, x, source, inside, source.size)
