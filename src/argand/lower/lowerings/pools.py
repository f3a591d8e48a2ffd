"""Pooling over windows, and its gradients; windows added up to what they were taken from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch

from argand.graph.sizes.expr import ZERO, Const, Expr, as_int, sum_of
from argand.graph.sizes.expr import product as product_of
from argand.graph.sizes.symbolic import contiguous_meta
from argand.ir.loops import TensorRef, Value
from argand.lower.context import Context, math_dtype
from argand.lower.layout import stride_order
from argand.lower.lowerings.norms import uses
from argand.lower.lowerings.places.indexing import INDEX_DTYPES
from argand.lower.lowerings.places.scatters import refuse_unordered
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten

FEW = 4  # elements that one element is handed to, where each of them finds it by a division
MANY_TAPS = 9  # elements of a window whose mean is a reduction, where windows are as large and lie side by side
MAX_TAPS = 27  # elements of a window that a loop body reads one by one

Place = tuple[Expr, "Value | None"]  # a position in a dimension, and where it is inside (None: everywhere)


def numbers_of(value: Any, rank: int) -> tuple[int, ...]:
    """A number for each dimension, from that many or one for all."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    refuse(not all(isinstance(n, int) for n in numbers), "a window of unknown size")
    return tuple(numbers * rank) if len(numbers) == 1 else tuple(numbers)


class Windows:
    """Where the windows of a pooling or convolution lie in its input.

    Arguments:
        size, stride, padding, dilation: as the op has them.
        extent: sizes of the input along which windows move.
    """

    def __init__(self, size: Any, stride: Any, padding: Any, dilation: Any, extent: Sequence[Expr]) -> None:
        rank = len(extent)
        self.size = numbers_of(size, rank)
        self.stride = numbers_of(stride, rank) if stride else self.size
        self.padding = numbers_of(padding, rank)
        self.dilation = numbers_of(dilation, rank)
        self.extent = tuple(extent)

    def along(self, ops: Recorder, axis: int, out: Expr) -> list[Place]:
        """The places of window `out` in one dimension."""
        start = out * self.stride[axis] - self.padding[axis]
        limit = self.extent[axis]
        return [self.place(ops, start + tap * self.dilation[axis], limit) for tap in range(self.size[axis])]

    @staticmethod
    def place(ops: Recorder, at: Expr, limit: Expr) -> Place:
        """A position in a dimension of size `limit`, and whether it is in it."""
        inside: Value | None = None
        value = ops.index_expr(at, torch.int64)
        low, high = ops.simplifier.bounds(at)
        if low is None or low < 0:
            inside = ops.ge(value, ops.constant(0, torch.int64))
        last = as_int(limit)
        if last is None or high is None or high >= last:
            inside = both(ops, inside, ops.lt(value, ops.index_expr(limit, torch.int64)))
        return at, inside


def both(ops: Recorder, a: Value | None, b: Value | None) -> Value | None:
    """The conjunction of two conditions that may be absent."""
    return b if a is None else a if b is None else ops.logical_and(a, b)


def tap(ops: Recorder, x: Tensor, place: Index, inside: Value | None, outside: float) -> Value:
    """One element of a window, in the dtype of computation."""
    math = math_dtype(x.dtype)
    if inside is None:
        return ops.to_dtype(x.load(ops, place), math)
    return ops.masked(inside, lambda: ops.to_dtype(x.load(ops, place), math), outside)


def _pooled(size: Any, stride: Any, padding: Any, dilation: Any, extent: Sequence[Expr]) -> Windows:
    """Those of a pooling over `extent`."""
    windows = Windows(size, stride, padding, dilation, extent)
    refuse(prod(windows.size) > MAX_TAPS, "pooling over large windows")
    return windows


def taps_of(ops: Recorder, along: Sequence[Sequence[Place]]) -> Iterator[tuple[Index, Value | None]]:
    """The elements of a window, row-major: the position of each, and where it is inside."""
    for places in product(*along):
        inside: Value | None = None
        for _, one in places:
            inside = both(ops, inside, one)
        yield tuple([at for at, _ in places]), inside


def added(ops: Recorder, parts: Iterable[Value], dtype: torch.dtype) -> Value:
    """The sum of values, the first ones first; 0 of none."""
    total: Value | None = None
    for part in parts:
        total = part if total is None else ops.add(total, part)
    return ops.constant(0.0, dtype) if total is None else total


def _flat(position: Index, extent: Sequence[Expr]) -> Expr:
    """The row-major number of a position."""
    number: Expr = ZERO
    for at, size in zip(position, extent):
        number = number * size + at
    return number


def _max_pool(
    ctx: Context, x: Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "max pooling of integers or nothing")
    rank = _rank_of(ctx)
    windows = _pooled(size, stride, padding, dilation, x.size[-rank:])

    def along(ops: Recorder, index: Index) -> list[list[Place]]:
        return [windows.along(ops, axis, index[axis - rank]) for axis in range(rank)]

    return _maxima(ctx, x, prod(windows.size), along)


def _adaptive_max_pool(ctx: Context, x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "max pooling of integers or nothing")
    rank = _rank_of(ctx)
    outer = ctx.sizes(ctx.val[0].shape)[-rank:]
    longest = [_longest(*extent) for extent in _adaptive_extents(x.size[-rank:], outer)]
    refuse(prod(longest) > MAX_TAPS, "pooling over large windows")

    def along(ops: Recorder, index: Index) -> list[list[Place]]:
        given = zip(index[-rank:], x.size[-rank:], outer, longest)
        return [_adaptive_places(ops, *one) for one in given]

    return _maxima(ctx, x, prod(longest), along)


def _maxima(
    ctx: Context, x: Tensor, taps: int, along: Callable[[Recorder, Index], list[list[Place]]]
) -> tuple[Tensor, Tensor]:
    """The largest element of each window of `taps`, and where it is: the last that is not a number, else the first."""
    ctx.realise(x)
    math = math_dtype(x.dtype)
    rank = _rank_of(ctx)
    extent = x.size[-rank:]

    def scan(ops: Recorder, index: Index, positions: bool) -> Value:
        window = along(ops, index)
        best: Value = ops.constant(-float("inf"), math)
        at = _first(ops, window, extent) if positions else best
        for place, inside in taps_of(ops, window):
            value = tap(ops, x, (*index[:-rank], *place), inside, -float("inf"))
            if not positions:
                best = ops.maximum(value, best)
                continue
            better = ops.logical_or(ops.gt(value, best), ops.compare("ne", value, value))
            best = ops.where(better, value, best)
            at = ops.where(better, ops.index_expr(_flat(place, extent), torch.int64), at)
        return at if positions else ops.to_dtype(best, x.dtype)

    value_meta, place_meta = ctx.val
    values = ctx.lazy(lambda ops, index: scan(ops, index, False), [x], cost=8 * taps, count=6 * taps, val=value_meta)
    places = ctx.lazy(lambda ops, index: scan(ops, index, True), [x], cost=8 * taps, count=8 * taps, val=place_meta)
    if uses(ctx, 1):
        ctx.realise_together([values, places])
    else:
        ctx.realise(values)
    return values, places


def _rank_of(ctx: Context) -> int:
    """Of the pooling that the node is: its name ends in 2d or 3d, before what it returns."""
    return 3 if ctx.node is not None and "3d" in str(ctx.node.target) else 2


def _first(ops: Recorder, along: Sequence[Sequence[Place]], extent: Sequence[Expr]) -> Value:
    """The first element of a window that is inside: the position of its maximum when all of it is -inf."""
    number: Value | None = None
    for places, size in zip(along, extent):
        known = next((n for n, (at, _) in enumerate(places) if (ops.simplifier.bounds(at)[0] or 0) >= 0), -1)
        first = ops.index_expr(places[known][0], torch.int64)
        for at, _ in reversed(places[:known]):
            value = ops.index_expr(at, torch.int64)
            first = ops.where(ops.ge(value, ops.constant(0, torch.int64)), value, first)
        wide = ops.index_expr(size, torch.int64)
        number = first if number is None else ops.add(ops.mul(number, wide), first)
    assert number is not None
    return number


def _adaptive_max_pool_backward(ctx: Context, grad: Tensor, x: Tensor, places: Tensor) -> Tensor:
    """Each element of grad is added where its window's maximum was."""
    dtype = ctx.val.dtype
    refuse(dtype not in (torch.float32, torch.float64) or grad.dtype is not dtype, "gradients in reduced precision")
    refuse(places.dtype not in INDEX_DTYPES or any(extent == 0 for extent in grad.size), "max pooling of nothing")
    shape, strides, rank = ctx.sizes(ctx.val.shape), ctx.sizes(ctx.val.stride()), _rank_of(ctx)
    apart = any(strides[dim] != shape[dim + 1] * strides[dim + 1] for dim in range(-rank, -1))
    refuse(apart, "gradients whose rows are apart")
    refuse_unordered(ctx)
    buffer = ctx.new_buffer(shape, strides, dtype, ctx.device)
    ref = ctx.ref_of(buffer)
    ctx.store(ctx.lazy(lambda ops, index: ops.constant(0.0, dtype), []), ref, creates=True)
    ctx.realise(places)
    ranges, dims, index = ctx.loop(grad.size, stride_order(grad.size, grad.stride, ctx.hints))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    value = grad.load(ops, index)
    points = ops.to_dtype(places.load(ops, index), torch.int64)
    at = ops.indirect_var(points, product_of(shape[-rank:]), False)
    lead = [position * step for position, step in zip(index[:-rank], strides[:-rank])]
    ops.store(buffer.name, sum_of([*lead, at * strides[-1]]), value, "add")
    ctx.add_loop(ops, dims, grad.size, (), (), [], [buffer.name])
    return ctx.from_ref(ref, dtype, ctx.device)


for _name in ("max_pool2d", "max_pool3d"):
    lowers(getattr(aten, f"{_name}_with_indices").default)(_max_pool)
    lowers(getattr(aten, f"{_name}_with_indices_backward").default)(
        lambda ctx, grad, x, *rest: _adaptive_max_pool_backward(ctx, grad, x, rest[-1])
    )
for _name in ("adaptive_max_pool2d", "adaptive_max_pool3d"):
    lowers(getattr(aten, _name).default)(_adaptive_max_pool)
    lowers(getattr(aten, f"{_name}_backward").default)(_adaptive_max_pool_backward)


class _Averages:
    """The windows of an average pooling, and over how many elements each is.

    Arguments:
        ceil_mode, count_include_pad, divisor: as the op has them.
    """

    def __init__(
        self, windows: Windows, ceil_mode: bool, count_include_pad: bool, divisor: int | None, math: torch.dtype
    ) -> None:
        refuse(divisor == 0, "averages over nothing")
        self.windows = windows
        self.padded = count_include_pad
        self.divisor = divisor
        self.math = math
        self.varies = [ceil_mode or (pad > 0 and not count_include_pad) for pad in windows.padding]

    def count(self, ops: Recorder, index: Index) -> Value:
        """Over how many elements window `index` is, as eager counts them."""
        windows = self.windows
        if self.divisor is not None:
            return ops.constant(float(self.divisor), self.math)
        fixed = prod([size for size, varies in zip(windows.size, self.varies) if not varies])
        count: Value | None = None
        for axis, out in enumerate(index):
            if not self.varies[axis]:
                continue
            start = out * windows.stride[axis] - windows.padding[axis]
            end = windows.extent[axis] + (windows.padding[axis] if self.padded else 0)
            first, last = ops.index_expr(start, torch.int64), ops.index_expr(start + windows.size[axis], torch.int64)
            last = ops.minimum(last, ops.index_expr(end, torch.int64))
            if not self.padded:
                first = ops.maximum(first, ops.constant(0, torch.int64))
            length = ops.sub(last, first)
            count = length if count is None else ops.mul(count, length)
        if count is None:
            return ops.constant(float(fixed), self.math)
        return ops.to_dtype(ops.mul(count, ops.constant(fixed, torch.int64)), self.math)


def _avg_pool(
    ctx: Context,
    x: Tensor,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "average pooling of integers or nothing")
    rank = _rank_of(ctx)
    windows, math = Windows(size, stride, padding, 1, x.size[-rank:]), math_dtype(x.dtype)
    many = MANY_TAPS if windows.stride[-1] >= windows.size[-1] else MAX_TAPS
    if prod(windows.size) > many and not (any(windows.padding) or ceil_mode or divisor):
        return _window_means(ctx, x, windows.size, windows.stride)
    refuse(prod(windows.size) > MAX_TAPS, "pooling over large windows")
    averages = _Averages(windows, ceil_mode, count_include_pad, divisor, math)
    ctx.realise(x)

    def load(ops: Recorder, index: Index) -> Value:
        along = [windows.along(ops, axis, index[axis - rank]) for axis in range(rank)]
        total: Value = ops.constant(0.0, math)
        for place, inside in taps_of(ops, along):
            total = ops.add(total, tap(ops, x, (*index[:-rank], *place), inside, 0.0))
        return ops.to_dtype(ops.truediv(total, averages.count(ops, index[-rank:])), x.dtype)

    taps = prod(windows.size)
    return ctx.lazy(load, [x], cost=4 * taps, count=5 * taps)


def _avg_pool_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """Each element takes its part of the gradients of the windows that it is in."""
    refuse(not is_float(grad) or any(extent == 0 for extent in grad.size), "average pooling of integers or nothing")
    rank, dtype = _rank_of(ctx), ctx.val.dtype
    windows, math = Windows(size, stride, padding, 1, ctx.sizes(ctx.val.shape)[-rank:]), math_dtype(dtype)
    averages = _Averages(windows, ceil_mode, count_include_pad, divisor, math)
    taps = prod(-(-k // s) for k, s in zip(windows.size, windows.stride))
    refuse(taps > MAX_TAPS, "elements in many windows")
    if windows.stride[-1] > 1 and not _channels_innermost(ctx):
        inner = [as_int(size) for size in ctx.sizes(ctx.val.shape)[-rank:]]
        whole = [as_int(count) for count in grad.size[-rank:]]
        alone = windows.stride == windows.size and not (any(windows.padding) or ceil_mode or divisor)
        if alone and all(a and b and a == b * k for a, b, k in zip(inner, whole, windows.size)):
            return _spread(ctx, grad, windows.size)
        many = taps > 2 or windows.size[-1] > FEW or any(averages.varies)
        refuse(many, "rows whose elements are in many windows")
    ctx.realise(grad)

    def load(ops: Recorder, index: Index) -> Value:
        along = [_windows_at(ops, windows, axis, index[axis - rank], grad.size[axis - rank]) for axis in range(rank)]
        windows_in = taps_of(ops, along)
        parts = (_part(ops, grad, (*index[:-rank], *place), inside, averages) for place, inside in windows_in)
        return ops.to_dtype(added(ops, parts, math), dtype)

    return ctx.lazy(load, [grad], cost=6 * taps, count=8 * taps)


def _channels_innermost(ctx: Context) -> bool:
    """Whether loops along memory run over channels, so that positions in an image are computed once for many."""
    stride = ctx.sizes(ctx.val.stride())
    return as_int(stride[1]) == 1 and as_int(stride[-1]) != 1


def _part(ops: Recorder, grad: Tensor, place: Index, inside: Value | None, averages: _Averages) -> Value:
    """What an element of a window gets of that window's gradient."""
    rank = len(averages.windows.size)
    value = tap(ops, grad, place, inside, 0.0)
    if averages.divisor is None and any(averages.varies):  # no window outside is counted, which might be over nothing
        count = averages.count(ops, place[-rank:])
        if inside is not None:
            count = ops.where(inside, count, ops.constant(1.0, averages.math))
        return ops.truediv(value, count)
    return ops.truediv(value, averages.count(ops, place[-rank:]))


def _windows_at(ops: Recorder, windows: Windows, axis: int, at: Expr, count: Expr) -> list[Place]:
    """The windows that hold position `at` of a dimension, of `count` that there are."""
    size, step, shifted = windows.size[axis], windows.stride[axis], at + windows.padding[axis]
    last, holding = shifted // step, []
    for number in range(-(-size // step)):
        window = last - number
        place, inside = Windows.place(ops, window, count)
        if (number + 1) * step > size:  # it may end before the position
            reach = ops.index_expr(window * step + size, torch.int64)
            inside = both(ops, inside, ops.gt(reach, ops.index_expr(shifted, torch.int64)))
        holding.append((place, inside))
    return holding


for _name in ("avg_pool2d", "avg_pool3d"):
    lowers(getattr(aten, _name).default)(_avg_pool)
    lowers(getattr(aten, f"{_name}_backward").default)(_avg_pool_backward)


def _windows_of(ops: Recorder, out: Expr, size: Expr, count: Expr) -> tuple[Value, Value]:
    """First element of window `out` of an adaptive pooling of `size` to `count`, and how many it has."""
    first = ops.index_expr((out * size) // count, torch.int64)
    end = ops.index_expr(((out + 1) * size + count - 1) // count, torch.int64)
    return first, ops.sub(end, first)


def _longest(size: int, count: int) -> int:
    """Elements of the largest window of an adaptive pooling."""
    return max(-(-(out + 1) * size // count) - out * size // count for out in range(count))


def _adaptive_places(ops: Recorder, out: Expr, size: Expr, count: Expr, longest: int) -> list[Place]:
    """The elements of window `out`, and which of them it has."""
    start = (out * size) // count
    _, length = _windows_of(ops, out, size, count)
    return [
        (start + number, ops.lt(ops.constant(number, torch.int64), length) if number else None)
        for number in range(longest)
    ]


def _adaptive_extents(inner: Index, outer: Index) -> list[tuple[int, int]]:
    """Sizes before and after pooling, which are known."""
    extents = [(as_int(a), as_int(b)) for a, b in zip(inner, outer)]
    refuse(any(a is None or b is None or a == 0 or b == 0 for a, b in extents), "adaptive pooling of unknown sizes")
    return [(a or 0, b or 0) for a, b in extents]


def _adaptive_avg_pool(ctx: Context, x: Tensor, size: Any) -> Tensor:
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "average pooling of integers or nothing")
    rank, math = _rank_of(ctx), math_dtype(x.dtype)
    outer = ctx.sizes(ctx.val.shape)[-rank:]
    extents = _adaptive_extents(x.size[-rank:], outer)
    longest = [_longest(*extent) for extent in extents]
    if prod(longest) > MANY_TAPS and all(size % count == 0 for size, count in extents):
        return _window_means(ctx, x, longest, longest)
    refuse(prod(longest) > MAX_TAPS, "pooling over large windows")
    ctx.realise(x)

    def load(ops: Recorder, index: Index) -> Value:
        given = list(zip(index[-rank:], x.size[-rank:], outer))
        along = [_adaptive_places(ops, *one, most) for one, most in zip(given, longest)]
        total: Value = ops.constant(0.0, math)
        for place, inside in taps_of(ops, along):
            total = ops.add(total, tap(ops, x, (*index[:-rank], *place), inside, 0.0))
        for one in given:
            total = ops.truediv(total, ops.to_dtype(_windows_of(ops, *one)[1], math))
        return ops.to_dtype(total, x.dtype)

    return ctx.lazy(load, [x], cost=5 * prod(longest), count=6 * prod(longest))


def _window_means(ctx: Context, x: Tensor, windows: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The means of large windows of these sizes, which lie inside, so far apart."""
    math, rank, count = math_dtype(x.dtype), len(windows), prod(windows)
    size = (*ctx.sizes(ctx.val.shape), *map(Const, windows))

    def body(ops: Recorder, reduce: Callable[[str, Value], Value], index: Index) -> Value:
        place = [at * stride + step for at, stride, step in zip(index[-2 * rank : -rank], strides, index[-rank:])]
        total = reduce("sum", ops.to_dtype(x.load(ops, (*index[: -2 * rank], *place)), math))
        return ops.to_dtype(ops.truediv(total, ops.constant(count, math)), x.dtype)

    return ctx.reduce(size, range(len(size) - rank, len(size)), body, inputs=[x])


def _spread(ctx: Context, grad: Tensor, windows: Sequence[int]) -> Tensor:
    """Gradients of the means of windows that lie side by side: each is written along its window."""
    dtype, rank, math = ctx.val.dtype, len(windows), math_dtype(ctx.val.dtype)
    lead, size, stride = grad.ndim - rank, ctx.sizes(ctx.val.shape), ctx.sizes(ctx.val.stride())

    def load(ops: Recorder, index: Index) -> Value:
        value = ops.to_dtype(grad.load(ops, (*index[:lead], *index[lead::2])), math)
        return ops.to_dtype(ops.truediv(value, ops.constant(prod(windows), math)), dtype)

    buffer = ctx.new_buffer(size, stride, dtype, ctx.device)
    along = [part for count, window in zip(grad.size[lead:], windows) for part in (count, Const(window))]
    steps = [part for step, window in zip(buffer.stride[lead:], windows) for part in (step * window, step)]
    ref = TensorRef(buffer.name, (*size[:lead], *along), (*buffer.stride[:lead], *steps), ZERO)
    ctx.store(ctx.lazy(load, [grad], cost=3, val=contiguous_meta(ref.size, dtype)), ref, creates=True)
    return ctx.from_ref(ctx.ref_of(buffer), dtype, ctx.device)


def _adaptive_avg_pool_backward(ctx: Context, grad: Tensor, x: Tensor) -> Tensor:
    refuse(not is_float(grad) or any(extent == 0 for extent in grad.size), "average pooling of integers or nothing")
    rank, math = _rank_of(ctx), math_dtype(grad.dtype)
    inner, outer = ctx.sizes(ctx.val.shape)[-rank:], grad.size[-rank:]
    extents = _adaptive_extents(inner, outer)
    most = [_longest(count, size) for size, count in extents]
    if all(size % count == 0 for size, count in extents) and not _channels_innermost(ctx):
        return _spread(ctx, grad, [size // count for size, count in extents])
    refuse(prod(most) > MAX_TAPS, "elements in many windows")
    scattered = max(most) > 1 or _longest(*extents[-1]) > FEW
    refuse(scattered and not _channels_innermost(ctx), "rows whose elements are in many windows")
    ctx.realise(grad)

    def windows(ops: Recorder, at: Expr, size: Expr, count: Expr, number: int) -> list[Place]:
        places: list[Place] = []
        for step in range(number):
            window, inside = Windows.place(ops, (at * count) // size + step, count)
            if step:
                begins = ops.le(_windows_of(ops, window, size, count)[0], ops.index_expr(at, torch.int64))
                inside = both(ops, inside, begins)
            places.append((window, inside))
        return places

    def load(ops: Recorder, index: Index) -> Value:
        given = list(zip(index[-rank:], inner, outer, most))

        def share(place: Index, inside: Value | None) -> Value:
            part = tap(ops, grad, (*index[:-rank], *place), inside, 0.0)
            for window, (_, size, count, _) in zip(place, given):
                part = ops.truediv(part, ops.to_dtype(_windows_of(ops, window, size, count)[1], math))
            return part

        shares = (share(*one) for one in taps_of(ops, [windows(ops, *one) for one in given]))
        return ops.to_dtype(added(ops, shares, math), grad.dtype)

    return ctx.lazy(load, [grad], cost=8 * prod(most), count=10 * prod(most))


for _name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"):
    lowers(getattr(aten, _name).default)(_adaptive_avg_pool)
    lowers(getattr(aten, f"{_name}_backward").default)(_adaptive_avg_pool_backward)


def _terms(x: Tensor, windows: Windows) -> int:
    """Windows that an element may be in."""
    terms = prod(-(-size // step) for size, step in zip(windows.size, windows.stride))
    refuse(not is_float(x) or any(extent == 0 for extent in x.size), "windows of integers or nothing")
    refuse(terms > MAX_TAPS, "elements in many windows")
    refuse(terms > 1 and math_dtype(x.dtype) != x.dtype, "sums that eager rounds at each window")
    return terms


@lowers(aten.unfold_backward.default)
def unfold_backward(ctx: Context, grad: Tensor, sizes: Any, dim: int, size: int, step: int) -> Tensor:
    """Each element takes the gradients of the windows that it is in, the first window's first, as eager does."""
    extent = ctx.sizes(ctx.val.shape)
    axis = dim + len(extent) if dim < 0 else dim
    refuse(not extent, "a window of a number")
    windows = Windows(size, step, 0, 1, [extent[axis]])
    terms = _terms(grad, windows)
    if terms > 1:
        ctx.realise(grad)

    def load(ops: Recorder, index: Index) -> Value:
        at = index[axis]

        def part(window: Expr, inside: Value | None) -> Value:
            place = (*index[:axis], window, *index[axis + 1 :], at - window * step)
            return tap(ops, grad, place, inside, 0.0)

        parts = (part(*one) for one in reversed(_windows_at(ops, windows, 0, at, grad.size[axis])))
        return ops.to_dtype(added(ops, parts, math_dtype(grad.dtype)), grad.dtype)

    return ctx.lazy(load, [grad], cost=6 * terms, count=8 * terms)


@lowers(aten.col2im.default)
def col2im(ctx: Context, x: Tensor, image: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Each pixel takes its elements of the blocks that it is in, in the order of the elements, as eager does."""
    extent = ctx.sizes(ctx.val.shape)[-2:]
    windows = Windows(size, stride, padding, dilation, extent)
    refuse(windows.dilation != (1, 1), "blocks with gaps")
    terms = _terms(x, windows)
    counts = [
        (extent[axis] + (2 * windows.padding[axis] - windows.size[axis])) // windows.stride[axis] + 1
        for axis in range(2)
    ]
    ctx.realise(x)

    def load(ops: Recorder, index: Index) -> Value:
        along = [_windows_at(ops, windows, axis, index[axis - 2], counts[axis]) for axis in range(2)]

        def part(block: Index, inside: Value | None) -> Value:
            element = index[-3]
            for axis, window in enumerate(block):
                start = window * windows.stride[axis] - windows.padding[axis]
                element = element * windows.size[axis] + (index[axis - 2] - start)
            return tap(ops, x, (*index[:-3], element, _flat(block, counts)), inside, 0.0)

        return ops.to_dtype(added(ops, (part(*one) for one in taps_of(ops, along)), math_dtype(x.dtype)), x.dtype)

    return ctx.lazy(load, [x], cost=8 * terms, count=10 * terms)
