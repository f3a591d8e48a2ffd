"""Writes at positions that tensors hold: sums (the gradients of reads at such positions), extrema, plain writes.

On a CPU values are written one after the other in the order of the source, as eager's kernels do; elsewhere they are
added in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph import compat
from argand.graph.sizes.expr import ZERO, Expr, as_int, product, sum_of
from argand.graph.sizes.symbolic import like_meta
from argand.ir.loops import Value, identity
from argand.ir.operations import DIVISION
from argand.lower.context import LOOP_DTYPES, Context, math_dtype
from argand.lower.elementwise import broadcaster, number_in, pointwise
from argand.lower.lowerings.places.indexing import INDEX_DTYPES, INLINE_COST, broadcast_sizes, position_of
from argand.lower.lowerings.pointwise import converted, refuse
from argand.lower.lowerings.views import wrap
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

ACCUMULATED = (torch.float32, torch.float64, torch.int64, torch.int32)
_NARROW = (torch.int16, torch.int8, torch.uint8)  # of which CPUs alone add up one after the other
_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}  # of stores
_KINDS = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}  # of reductions
WIDE_ELEMENTS = 1 << 25  # of a sum in float32 that stands in for one in 16 bits
PARTS = (8, 4, 2)  # of a row that threads write to side by side
LEAST_PART = 32  # elements of such a part

Entry = Callable[[Recorder, Index], tuple[Index, Value]]


def refuse_unordered(ctx: Context) -> None:
    """Leave sums to ATen whose order would be any, where the program asks for deterministic algorithms."""
    refuse(ctx.device.type != "cpu" and compat.deterministic()[0], "sums in any order")


def added(
    ctx: Context,
    start: Tensor,
    size: tuple[Expr, ...],
    entry: Entry,
    *,
    rows: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`start`, in the node's layout, with values added to some of its elements.

    Arguments:
        size: of the loops over the values, outermost first.
        entry: records, for a point of these loops, the element that is added to, and what is added.
        rows: the last loop runs along a row of the result: it may be split into parts, which run before the others.
        dtype: that is added up in. If None, it is the node's, and float32 of 16-bit floats on a CPU.
    """
    dtype = dtype or (_wide(ctx) if ctx.device.type == "cpu" else ctx.val.dtype)
    _refuse_sums(ctx, dtype)
    refuse_unordered(ctx)
    whole = _copied(ctx, start, dtype)
    _write(ctx, whole, size, entry, "add", rows)
    return whole if dtype is ctx.val.dtype else converted(ctx, whole)


def _refuse_sums(ctx: Context, dtype: torch.dtype) -> None:
    narrow = ctx.device.type == "cpu" and dtype in _NARROW
    refuse(dtype not in ACCUMULATED and not narrow, "sums at positions in that dtype")


def _copied(ctx: Context, start: Tensor, dtype: torch.dtype) -> Tensor:
    """`start` in a buffer of its own, in the node's layout."""
    buffer = ctx.new_buffer(start.size, ctx.sizes(ctx.val.stride()), dtype, ctx.device)
    ref = ctx.ref_of(buffer)
    if start.dtype is not dtype:
        val, narrow = like_meta(ctx.val, dtype), start
        start = ctx.lazy(lambda ops, index: ops.to_dtype(narrow.load(ops, index), dtype), [narrow], val=val)
    ctx.store(start, ref, creates=True)
    return ctx.from_ref(ref, dtype, ctx.device)


def _write(
    ctx: Context, whole: Tensor, size: tuple[Expr, ...], entry: Entry, mode: str | None, rows: bool = False
) -> None:
    """Write to elements of `whole`, a buffer, in loops over `size`; `entry` records where, and what."""
    ref = ctx.realise(whole)
    length = as_int(size[-1]) if rows else None
    parts = next((n for n in PARTS if length is not None and length % n == 0 and length >= n * LEAST_PART), 1)
    size = (size[0] * 0 + parts, *size[:-1], size[-1] // parts) if parts > 1 else size
    ranges, dims, index = ctx.loop(size, range(len(size)))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    place, value = entry(ops, (*index[1:-1], index[0] * size[-1] + index[-1]) if parts > 1 else index)
    at = sum_of([position * step for position, step in zip(place, ref.stride)])
    ops.store(ref.buffer, at, ops.to_dtype(value, whole.dtype), mode)
    ctx.add_loop(ops, dims, size, (), (), [], [ref.buffer])


def _wide(ctx: Context) -> torch.dtype:
    """In what values of the node's dtype are added up: eager's kernels for GPUs add 16-bit floats in float32, too."""
    dtype: torch.dtype = ctx.val.dtype
    half = dtype in (torch.float16, torch.bfloat16)
    few = (as_int(product(ctx.sizes(ctx.val.shape))) or WIDE_ELEMENTS + 1) <= WIDE_ELEMENTS
    return torch.float32 if half and few else dtype


def _filled(ctx: Context, number: int, dtype: torch.dtype) -> Tensor:
    value = float(number) if dtype.is_floating_point else number
    return ctx.lazy(lambda ops, index: ops.constant(value, dtype), [], val=like_meta(ctx.val, dtype))


def _check(ctx: Context, value: Tensor | None, *indices: Tensor) -> None:
    refuse(any(each.dtype not in INDEX_DTYPES for each in indices), "positions of that dtype")
    refuse(ctx.val.dtype not in LOOP_DTYPES, "values of that dtype")
    refuse(value is not None and value.dtype is not ctx.val.dtype, "values of another dtype")
    given = (*indices,) if value is None else (value, *indices)
    refuse(any(as_int(extent) == 0 for each in given for extent in each.size), "nothing to add")
    for each in indices:
        ctx.realise(each)
    if value is not None and value.cost >= INLINE_COST:  # loops that look places up may not be vectors
        ctx.realise(value)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Context, grad: Tensor, index: Tensor, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    refuse(scale_grad_by_freq, "an embedding's gradient scaled by frequency")
    _check(ctx, grad, index)
    zero = 0.0 if grad.dtype.is_floating_point else 0
    weights, wide = ctx.sizes(ctx.val.shape), _wide(ctx)

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        row = ops.to_dtype(index.load(ops, at[:-1]), torch.int64)
        value = grad.load(ops, at)
        if padding_idx >= 0:
            kept = ops.ne(row, ops.constant(padding_idx, torch.int64))
            value = ops.where(kept, value, ops.constant(zero, value.dtype))
        return (ops.indirect_var(row, weights[0], False), at[-1]), value

    return added(ctx, _filled(ctx, 0, wide), grad.size, entry, rows=True, dtype=wide)


def _along(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor | None) -> Entry:
    """Where the elements of an index as large as its source (of numbers: None) write along `dim`, and what."""
    refuse(x.ndim == 0 or index.ndim != x.ndim, "positions in 0-d tensors")
    _check(ctx, source, index)
    if source is not None:
        refuse(source.ndim != x.ndim, "positions in 0-d tensors")
        refuse(any(_longer(a, b) for a, b in zip(index.size, source.size)), "an index larger than its source")
    refuse(any(_longer(a, b) for d, (a, b) in enumerate(zip(index.size, x.size)) if d != dim), "an index too large")

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        place = position_of(ops, index, at, x.size[dim], False)
        value = source.load(ops, at) if source is not None else ops.constant(0, torch.int64)
        return (*at[:dim], place, *at[dim + 1 :]), value

    return entry


@lowers(aten.scatter_add.default)
def scatter_add(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    refuse(x.ndim == 0, "positions in 0-d tensors")
    dim = wrap(dim, x.ndim)
    return added(ctx, x, index.size, _along(ctx, x, dim, index, source), rows=dim < x.ndim - 1)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor | Number) -> Tensor:
    refuse(x.ndim == 0, "positions in 0-d tensors")
    given = source if isinstance(source, Tensor) else None
    entry = _along(ctx, x, wrap(dim, x.ndim), index, given)
    return written(ctx, x, index.size, entry if given is not None else _constant(entry, source, x.dtype))


def written(ctx: Context, start: Tensor, size: tuple[Expr, ...], entry: Entry) -> Tensor:
    """`start` with some elements written; of several written to one, the last in the order of the loops stays."""
    refuse(ctx.device.type != "cpu", "writes at positions, of which one may win")
    whole = _copied(ctx, start, ctx.val.dtype)
    _write(ctx, whole, size, entry, None)
    return whole


def _constant(entry: Entry, number: Any, dtype: torch.dtype) -> Entry:
    """The same places, and a number."""
    refuse(not isinstance(number, (int, float, bool)), "a number that varies")
    value = number_in(number, dtype)
    return lambda ops, at: (entry(ops, at)[0], ops.to_dtype(ops.constant(value, math_dtype(dtype)), dtype))


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    refuse(x.ndim == 0, "positions in 0-d tensors")
    dim = wrap(dim, x.ndim)
    entry = _along(ctx, x, dim, index, source)
    return _reduced(ctx, x, index.size, entry, reduce, include_self, dim < x.ndim - 1)


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_combined(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Any, *, reduce: str) -> Tensor:
    refuse(x.ndim == 0, "positions in 0-d tensors")
    dim = wrap(dim, x.ndim)
    given = source if isinstance(source, Tensor) else None
    entry = _along(ctx, x, dim, index, given)
    entry = entry if given is not None else _constant(entry, source, x.dtype)
    return _reduced(ctx, x, index.size, entry, {"add": "sum", "multiply": "prod"}[reduce], True, dim < x.ndim - 1)


def _reduced(
    ctx: Context, x: Tensor, size: tuple[Expr, ...], entry: Entry, reduce: str, include_self: bool, rows: bool
) -> Tensor:
    """`x` with values combined with some of its elements, or in their place."""
    dtype: torch.dtype = ctx.val.dtype
    refuse(ctx.device.type != "cpu" or reduce not in _MODES, "values combined at positions")
    refuse(dtype is torch.bool, "bools combined at positions")
    if reduce not in ("amax", "amin"):
        dtype = _wide(ctx)
        _refuse_sums(ctx, dtype)
    refuse(reduce == "mean" and not dtype.is_floating_point, "means of integers")
    whole = _copied(ctx, x, dtype)
    if not include_self:
        _write(ctx, whole, size, _constant(entry, identity(_KINDS[reduce], dtype), dtype), None, rows)
    _write(ctx, whole, size, entry, _MODES[reduce], rows)
    if reduce != "mean":
        return whole if dtype is ctx.val.dtype else converted(ctx, whole)
    count = _copied(ctx, _filled(ctx, int(include_self), dtype), dtype)
    _write(ctx, count, size, _constant(entry, 1, dtype), "add", rows)

    def divided(ops: Recorder, total: Value, number: Value) -> Value:
        none = ops.eq(number, ops.constant(0.0, dtype))
        return ops.truediv(total, ops.where(none, ops.constant(1.0, dtype), number))

    return pointwise(ctx, divided, [whole, count], common=dtype, cost=DIVISION)


def _longer(a: Expr, b: Expr) -> bool:
    """Whether size `a` may be above size `b`."""
    if a is b:
        return False
    one, two = as_int(a), as_int(b)
    return one is None or two is None or one > two


def _slices(
    ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor | None, wraps: bool = False
) -> tuple[Index, Entry]:
    """The loops over slices of `x` at positions along `dim` and what is to be written there (None: a number)."""
    refuse(x.ndim == 0 or index.ndim != 1, "slices of 0-d tensors")
    _check(ctx, source, index)
    size = (*x.size[:dim], index.size[0], *x.size[dim + 1 :])
    refuse(any(as_int(extent) == 0 for extent in size), "nothing to write")
    refuse(source is not None and source.size != size, "slices of other sizes")

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        place = position_of(ops, index, at[dim : dim + 1], x.size[dim], wraps)
        value = source.load(ops, at) if source is not None else ops.constant(0, torch.int64)
        return (*at[:dim], place, *at[dim + 1 :]), value

    return size, entry


@lowers(aten.index_add.default)
def index_add(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    refuse(x.ndim == 0, "slices of 0-d tensors")
    refuse(type(alpha) not in (int, float), "a slice times a number that varies")
    dim = wrap(dim, x.ndim)
    size, entry = _slices(ctx, x, dim, index, source)

    def scaled(ops: Recorder, at: Index) -> tuple[Index, Value]:
        place, value = entry(ops, at)
        value = ops.to_dtype(value, math_dtype(value.dtype))
        return place, ops.mul(value, ops.constant(number_in(alpha, value.dtype), value.dtype))

    return added(ctx, x, size, entry if alpha == 1 else scaled, rows=dim < x.ndim - 1)


@lowers(aten.index_copy.default)
def index_copy(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    refuse(x.ndim == 0, "slices of 0-d tensors")
    return written(ctx, x, *_slices(ctx, x, wrap(dim, x.ndim), index, source))


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ctx: Context, x: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    refuse(x.ndim == 0, "slices of 0-d tensors")
    size, entry = _slices(ctx, x, wrap(dim, x.ndim), index, None, wraps=True)
    if not isinstance(value, Tensor):
        return written(ctx, x, size, _constant(entry, value, x.dtype))
    refuse(value.ndim > 0 or value.dtype is not x.dtype, "values of another dtype")
    ctx.realise(value)
    filled = value
    return written(ctx, x, size, lambda ops, at: (entry(ops, at)[0], filled.load(ops, ())))


@lowers(aten.index_reduce.default)
def index_reduce(
    ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    refuse(x.ndim == 0 or reduce == "mean", "slices of 0-d tensors, means")
    dim = wrap(dim, x.ndim)
    size, entry = _slices(ctx, x, dim, index, source)
    return _reduced(ctx, x, size, entry, reduce, include_self, dim < x.ndim - 1)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Context, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if any(as_int(extent) == 0 for _, each in given for extent in each.size):
        return pointwise(ctx, lambda ops, a: a, [x])
    refuse(not accumulate and ctx.device.type != "cpu", "writes at positions, of which one may win")
    refuse(not given or x.ndim == 0, "index_put without positions")
    dims = [dim for dim, _ in given]
    _check(ctx, values, *(each for _, each in given))
    shape = broadcast_sizes([each.size for _, each in given])
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    front = dims[0] if together else 0  # where the index's dimensions stand in the values
    rest = [dim for dim in range(x.ndim) if dim not in dims]
    size = (*[x.size[dim] for dim in rest[:front]], *shape, *[x.size[dim] for dim in rest[front:]])
    refuse(any(as_int(extent) == 0 for extent in size) or values.ndim > len(size), "nothing to add")
    places = [broadcaster(ctx, each, shape) for _, each in given]
    source = broadcaster(ctx, values, size)

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        inner = at[front : front + len(shape)]
        target: list[Expr] = [ZERO] * x.ndim
        for dim, position in zip(rest, (*at[:front], *at[front + len(shape) :])):
            target[dim] = position
        for (dim, each), place in zip(given, places):
            target[dim] = position_of(ops, each, place(inner), x.size[dim], True)
        return tuple(target), values.load(ops, source(at))

    if not accumulate:
        return written(ctx, x, size, entry)
    return added(ctx, x, size, entry, rows=rest[front:][-1:] == [x.ndim - 1])


@lowers(aten.histc.default)
def histc(ctx: Context, x: Tensor, bins: Any = 100, low: Any = 0, high: Any = 0) -> Tensor:
    """How many values are in each of equal parts of a range; the last one has its end, too."""
    refuse(any(type(each) not in (int, float) for each in (bins, low, high)), "a range that varies")
    refuse(not low < high or high - low == float("inf"), "counts between the least and the greatest value")
    refuse(ctx.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64), "counts of values of that dtype")
    refuse(x.ndim == 0 or any(as_int(extent) == 0 for extent in x.size), "nothing to add")
    first, span = number_in(low, x.dtype), number_in(number_in(high, x.dtype) - number_in(low, x.dtype), x.dtype)

    def entry(ops: Recorder, at: Index) -> tuple[Index, Value]:
        value = x.load(ops, at)
        start, end = (ops.constant(number_in(each, x.dtype), x.dtype) for each in (low, high))
        inside = ops.logical_and(ops.ge(value, start), ops.le(value, end))
        away = ops.mul(ops.sub(value, ops.constant(first, x.dtype)), ops.constant(float(bins), x.dtype))
        part = ops.where(inside, ops.truediv(away, ops.constant(span, x.dtype)), ops.constant(0.0, x.dtype))
        place = ops.minimum(ops.to_dtype(part, torch.int64), ops.constant(bins - 1, torch.int64))
        return (ops.indirect_var(place, ctx.sizes(ctx.val.shape)[0], False),), ops.to_dtype(inside, x.dtype)

    return added(ctx, _filled(ctx, 0, x.dtype), x.size, entry)
