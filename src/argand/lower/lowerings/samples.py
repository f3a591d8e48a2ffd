"""Images looked up at places that a grid holds: grid_sampler_2d and 3d, and their gradients, on a CPU.

An element is a weighted sum of elements of the image: along each dimension of some, whose positions and weights follow
from a coordinate between -1 and 1. Positions are computed as eager computes them, with its roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch

from argand.graph.sizes.expr import ONE, Const, Expr, as_int, sum_of
from argand.graph.sizes.expr import product as product_of
from argand.graph.sizes.symbolic import contiguous_meta
from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.lowerings.norms import meta
from argand.lower.lowerings.pointwise import refuse
from argand.lower.lowerings.pools import both
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
Reduce = Callable[[str, Value], Value]
Sample = Callable[[Recorder, "Sequence[tuple[Tap, ...]]", Expr, Expr], Value]
MOST_CHANNELS = {LINEAR: 4, NEAREST: 4, CUBIC: 16}  # of images that are looked up channel by channel
LEAST_CHANNELS = {LINEAR: 8, NEAREST: 32, CUBIC: 17}  # of images that are looked up for all channels at once
MOST_LOOKED_UP = 64  # elements of an image in one round of the loops
CURVE = -0.75  # of the cubic weights


@dataclass(frozen=True, slots=True)
class Tap:
    """An element of the image along one dimension.

    Arguments:
        at: its position.
        inside: where that is in the image (None: everywhere).
        weight: of the element (None: 1).
        slope: derivative of the weight by the position that was asked for.
    """

    at: Expr
    inside: Value | None
    weight: Value | None
    slope: Value | None


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the image, and how it is looked up.

    Arguments:
        size: of the dimension.
        mode, padding, corners: as the op has them.
        flat: whether the image has two dimensions: eager's kernels for three round differently.
        math: dtype of positions and weights.
    """

    size: int
    mode: int
    padding: int
    corners: bool
    flat: bool
    math: torch.dtype

    def number(self, ops: Recorder, value: float) -> Value:
        return ops.constant(value, self.math)

    def source(self, ops: Recorder, coordinate: Value) -> Value:
        """A coordinate as a position in the dimension."""
        one, half = self.number(ops, 1.0), self.number(ops, 0.5)
        up = ops.add(coordinate, one)
        if self.corners:
            if self.flat:
                return ops.mul(up, self.number(ops, (self.size - 1) / 2))
            return ops.mul(ops.mul(up, half), self.number(ops, self.size - 1))
        if self.flat:
            return ops.fma(up, self.number(ops, self.size / 2), self.number(ops, -0.5))
        return ops.mul(ops.sub(ops.mul(up, self.number(ops, self.size)), one), half)

    def padded(self, ops: Recorder, at: Value) -> tuple[Value, Value | None]:
        """A position moved into the image, where that is what stands for places outside, and the slope of that move."""
        if self.padding == ZEROS:
            return at, None
        slope: Value | None = None
        if self.padding == REFLECTION:
            at, slope = self._reflected(ops, at)
        zero, last, one = self.number(ops, 0.0), self.number(ops, self.size - 1), self.number(ops, 1.0)
        above, below = ops.gt(at, zero), ops.lt(at, last)
        if not self.flat:  # eager's kernel for three dimensions takes what is no number to the other end
            above = ops.logical_or(above, ops.isnan(at))
        clipped = ops.where(above, at, zero)
        clipped = ops.where(ops.lt(clipped, last), clipped, last)
        return clipped, ops.where(ops.logical_and(above, below), one if slope is None else slope, zero)

    def _reflected(self, ops: Recorder, at: Value) -> tuple[Value, Value]:
        """A position reflected at the borders as often as needed."""
        zero, one, less = (self.number(ops, value) for value in (0.0, 1.0, -1.0))
        span = self.size - 1 if self.corners else self.size
        if span == 0:
            return zero, zero
        low = self.number(ops, 0.0 if self.corners else -0.5)
        offset = ops.sub(at, low)
        far = ops.abs(offset)
        if self.flat:
            twice = self.number(ops, 2 * span)
            rest = ops.fma(ops.neg(ops.trunc(ops.truediv(far, twice))), twice, far)
            back = ops.sub(twice, rest)
            turned = ops.gt(rest, back)
        else:
            once, half = self.number(ops, span), self.number(ops, 0.5)
            rest, rounds = ops.fmod(far, once), ops.floor(ops.truediv(far, once))
            back = ops.sub(once, rest)
            turned = ops.ne(ops.floor(ops.mul(rounds, half)), ops.mul(rounds, half))
        slope = ops.where(ops.logical_xor(turned, ops.lt(offset, zero)), less, one)
        return ops.add(ops.where(turned, back, rest), low), slope

    def _tap(self, ops: Recorder, at: Value, weight: Value | None, slope: Value | None, may_leave: bool) -> Tap:
        """The element at a whole position."""
        inside: Value | None = None
        if may_leave:
            below = ops.lt(at, self.number(ops, self.size))
            inside = below if self.padding != ZEROS else ops.logical_and(ops.ge(at, self.number(ops, 0.0)), below)
        whole = ops.to_dtype(at, torch.int32)
        last = ops.constant(self.size - 1, torch.int32)
        bounded = ops.minimum(ops.maximum(whole, ops.constant(0, torch.int32)), last)
        place = ops.indirect_var(ops.to_dtype(bounded, torch.int64), Const(self.size), False)
        return Tap(place, inside, weight, slope)

    def taps(self, ops: Recorder, at: Value) -> list[Tap]:
        """The elements that one is made of, given the position that `position` says."""
        zero, one = self.number(ops, 0.0), self.number(ops, 1.0)
        if self.mode == NEAREST:
            return [self._tap(ops, ops.round(at), None, zero, self.padding == ZEROS)]
        whole = ops.floor(at)
        part = ops.sub(at, whole)
        if self.mode == LINEAR:
            first = self._tap(ops, whole, ops.sub(one, part), self.number(ops, -1.0), self.padding == ZEROS)
            return [first, self._tap(ops, ops.add(whole, one), part, one, True)]
        taps = []
        for step in (-1, 0, 1, 2):
            place, _ = self.padded(ops, ops.add(whole, self.number(ops, step)))
            weight, slope = self._cubic(ops, part, step)
            taps.append(self._tap(ops, place, weight, slope, self.padding == ZEROS))
        return taps

    def _cubic(self, ops: Recorder, part: Value, step: int) -> tuple[Value, Value]:
        """Keys' kernel at the distance of a neighbour, and its derivative by the position."""
        distance = ops.add(part, self.number(ops, -step)) if step <= 0 else ops.sub(self.number(ops, step), part)

        def polynomial(*factors: float) -> Value:
            total = self.number(ops, factors[0])
            for factor in factors[1:]:
                total = ops.add(ops.mul(total, distance), self.number(ops, factor))
            return total

        if step in (0, 1):
            weight, slope = polynomial(CURVE + 2, -CURVE - 3, 0.0, 1.0), polynomial(3 * CURVE + 6, -2 * CURVE - 6, 0.0)
        else:
            weight = polynomial(CURVE, -5 * CURVE, 8 * CURVE, -4 * CURVE)
            slope = polynomial(3 * CURVE, -10 * CURVE, 8 * CURVE)
        return weight, slope if step <= 0 else ops.neg(slope)

    def position(self, ops: Recorder, coordinate: Value) -> Value:
        """Where a coordinate is in the image, before it is looked up; cubic weights follow from places outside, too."""
        at = self.source(ops, coordinate)
        return at if self.mode == CUBIC else self.padded(ops, at)[0]

    def multiplier(self, ops: Recorder, coordinate: Value) -> Value:
        """Derivative of `position` by the coordinate."""
        scale = self.number(ops, (self.size - 1 if self.corners else self.size) / 2)
        slope = None if self.mode == CUBIC else self.padded(ops, self.source(ops, coordinate))[1]
        return scale if slope is None else ops.mul(slope, scale)


def _axes(ctx: Context, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> list[Axis]:
    """The dimensions of the image."""
    refuse(ctx.device.type != "cpu", "images looked up on a GPU")
    refuse(x.dtype not in (torch.float32, torch.float64) or grid.dtype is not x.dtype, "images of that dtype")
    sizes = [as_int(extent) for extent in x.size[2:]]
    refuse(any(as_int(extent) == 0 for extent in (*x.size, *grid.size)), "an image of nothing")
    refuse(any(size is None or size >= 1 << 24 for size in sizes), "an image of unknown size")
    return [Axis(int(size or 0), mode, padding, corners, len(sizes) == 2, x.dtype) for size in sizes]


def _positions(ctx: Context, grid: Tensor, axes: Sequence[Axis], channels: Expr) -> list[Tensor]:
    """Where the image is looked up, by dimension; kept where each place is looked up in several channels."""
    if grid.cost > 1 and channels is not ONE:
        ctx.realise(grid)
    val = meta(grid.size[:-1], grid.dtype)
    places = []
    for number, axis in enumerate(axes):

        def load(ops: Recorder, at: Index, axis: Axis = axis, number: int = number) -> Value:
            return axis.position(ops, grid.load(ops, (*at, Const(len(axes) - 1 - number))))

        places.append(ctx.lazy(load, [grid], cost=8, count=20, val=val))
    if channels is not ONE and not ctx.inline:
        ctx.realise_together(places)
    return places


def _corners(ops: Recorder, axes: Sequence[Axis], places: Sequence[Tensor], at: Index) -> list[tuple[Tap, ...]]:
    """The elements of the image for the element at a place of the grid."""
    along = [axis.taps(ops, place.load(ops, at)) for axis, place in zip(axes, places)]
    return list(product(*along))


def _inside(ops: Recorder, corner: Sequence[Tap]) -> Value | None:
    inside: Value | None = None
    for tap in corner:
        inside = both(ops, inside, tap.inside)
    return inside


def _weight(ops: Recorder, corner: Sequence[Tap], slope_of: int = -1) -> Value | None:
    """The product of a corner's weights; of the dimension `slope_of`, of its slope."""
    total: Value | None = None
    for number, tap in enumerate(corner):
        factor = tap.slope if number == slope_of else tap.weight
        if factor is not None:
            total = factor if total is None else ops.mul(total, factor)
    return total


def _within(ops: Recorder, value: Value, corner: Sequence[Tap]) -> Value:
    """A value of an element of the image, 0 where that is outside."""
    inside = _inside(ops, corner)
    return value if inside is None else ops.where(inside, value, ops.constant(0.0, value.dtype))


def _few_channels(x: Tensor, axes: Sequence[Axis]) -> bool:
    """Whether to look up channel by channel."""
    most = MOST_CHANNELS[axes[0].mode] if axes[0].flat else 1 << 30
    return (as_int(x.size[1]) or most + 1) <= most


def _worth_turning(x: Tensor, grid: Tensor, mode: int) -> bool:
    """Whether to look up all channels at once; an image that lies channel by channel is copied for that."""
    channels, points, places = as_int(x.size[1]), *(as_int(product_of(t)) for t in (x.size[2:], grid.size[1:-1]))
    if channels is None or points is None or channels < LEAST_CHANNELS[mode]:
        return False
    return x.stride[1] is ONE or (places is not None and 2 * places >= points)


def _turned(ctx: Context, x: Tensor, order: Sequence[int]) -> Tensor:
    """A tensor with its dimensions in another order, side by side in memory in that order."""
    back = [order.index(dim) for dim in range(len(order))]

    def load(ops: Recorder, index: Index) -> Value:
        return x.load(ops, tuple(index[place] for place in back))

    turned = ctx.lazy(load, [x], cost=0, val=contiguous_meta([x.size[dim] for dim in order], x.dtype))
    ctx.realise(turned)
    return turned


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(ctx: Context, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    axes = _axes(ctx, x, grid, mode, padding, corners)
    few = _few_channels(x, axes)
    refuse(not few and not _worth_turning(x, grid, mode), "some channels, whose places eager computes once")
    ctx.realise(x)
    taps = (2, 1, 4)[mode] ** len(axes)
    together = _channels_together(ctx, x, taps) if few else 1
    places = _positions(ctx, grid, axes, x.size[1] if few and as_int(x.size[1]) != together else ONE)
    image = x if few else _turned(ctx, x, (0, 2, 3, 1))

    def sample(ops: Recorder, corners: Sequence[tuple[Tap, ...]], batch: Expr, channel: Expr) -> Value:
        total: Value | None = None
        for corner in corners:
            position = tuple(tap.at for tap in corner)
            value = image.load(ops, (batch, channel, *position) if few else (batch, *position, channel))
            value = _within(ops, value, corner)
            weight = _weight(ops, corner)
            if weight is None:
                return value
            if not axes[0].flat:  # what is outside counts for nothing there, whatever its weight
                weight = _within(ops, weight, corner)
            total = ops.mul(value, weight) if total is None else ops.fma(value, weight, total)
        assert total is not None  # a corner there always is
        return total

    if together > 1:
        return _stored(ctx, sample, axes, places, together)

    def load(ops: Recorder, index: Index) -> Value:
        return sample(ops, _corners(ops, axes, places, (index[0], *index[2:])), *index[:2])

    return ctx.lazy(load, [image, *places], cost=8 * taps, count=20 * len(axes) + 8 * taps)


def _channels_together(ctx: Context, x: Tensor, taps: int) -> int:
    """How many channels to look up in one round of the loops: their places and weights are the same."""
    channels = as_int(x.size[1])
    if channels is None or ctx.inline or ctx.sizes(ctx.val.stride())[-1] is not ONE:
        return 1
    most = max(MOST_LOOKED_UP // taps, 1)
    return max(number for number in range(1, min(channels, most) + 1) if channels % number == 0)


def _stored(ctx: Context, sample: Sample, axes: Sequence[Axis], places: Sequence[Tensor], together: int) -> Tensor:
    """The result, some channels of a place after the other."""
    size = ctx.sizes(ctx.val.shape)
    buffer = ctx.new_buffer(size, ctx.sizes(ctx.val.stride()), ctx.val.dtype, ctx.device)
    size = (size[0], size[1] // together, *size[2:])
    ranges, dims, index = ctx.loop(size, range(len(size)))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    corners = _corners(ops, axes, places, (index[0], *index[2:]))
    for number in range(together):
        channel = index[1] * together + number
        value = sample(ops, corners, index[0], channel)
        terms = zip((index[0], channel, *index[2:]), buffer.stride)
        ops.store(buffer.name, sum_of([at * step for at, step in terms]), value)
    ctx.add_loop(ops, dims, size, (), (), [buffer.name], [])
    return ctx.from_ref(ctx.ref_of(buffer), ctx.val.dtype, ctx.device)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    corners: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    axes = _axes(ctx, x, grid, mode, padding, corners)
    few = _few_channels(x, axes)
    refuse(not few and not _worth_turning(x, grid, mode), "many channels, whose places eager computes once")
    refuse(mode != LINEAR and axes[0].flat, "gradients of nearest and cubic samples")
    ctx.realise(x)
    ctx.realise(grad)
    places = _positions(ctx, grid, axes, x.size[1] if few else ONE)
    order = range(x.ndim) if few else (0, *range(2, x.ndim), 1)
    grad, x = (each if few else _turned(ctx, each, order) for each in (grad, x))
    image = _image_gradient(ctx, grad, x, axes, places, order) if wanted[0] else None
    return image, _grid_gradient(ctx, grad, x, grid, axes, places, order) if wanted[1] else None


def _at(order: Sequence[int], lead: Index, inner: Sequence[Expr]) -> Index:
    """A place in a tensor whose dimensions are in another order: batch and channel, and the others."""
    index = (*lead, *inner)
    return tuple(index[dim] for dim in order)


def _image_gradient(
    ctx: Context, grad: Tensor, x: Tensor, axes: Sequence[Axis], places: Sequence[Tensor], order: Sequence[int]
) -> Tensor:
    """Each element of grad is added to those that it was made of, in proportion."""
    val = ctx.val[0]
    moved = contiguous_meta(x.size, x.dtype)
    stride = ctx.sizes((val if order[1] == 1 else moved).stride())
    buffer = ctx.new_buffer(x.size, stride, x.dtype, ctx.device)
    ref = ctx.ref_of(buffer)
    zeros = ctx.lazy(lambda ops, index: ops.constant(0.0, x.dtype), [], val=val if order[1] == 1 else moved)
    ctx.store(zeros, ref, creates=True)
    ranges, dims, index = ctx.loop(grad.size, range(grad.ndim))
    ops = Recorder(ranges)
    ops.origin = ctx.origin
    value = grad.load(ops, index)
    back = [order.index(dim) for dim in range(len(order))]
    batch, channel, *inner = (index[place] for place in back)
    for corner in _corners(ops, axes, places, (batch, *inner)):
        weight = _weight(ops, corner)
        part = _within(ops, value if weight is None else ops.mul(value, weight), corner)
        place = _at(order, (batch, channel), [tap.at for tap in corner])
        ops.store(buffer.name, sum_of([at * step for at, step in zip(place, buffer.stride)]), part, "add")
    ctx.add_loop(ops, dims, grad.size, (), (), [], [buffer.name])
    summed = ctx.from_ref(ref, x.dtype, ctx.device)
    if order[1] == 1:
        return summed
    return ctx.lazy(lambda ops, index: summed.load(ops, _at(order, index[:2], index[2:])), [summed], cost=0, val=val)


def _grid_gradient(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    axes: Sequence[Axis],
    places: Sequence[Tensor],
    order: Sequence[int],
) -> Tensor:
    """What each coordinate changes, added up over the channels."""
    rank = len(axes)
    val = ctx.val[1]
    if axes[0].mode == NEAREST:
        return ctx.lazy(lambda ops, index: ops.constant(0.0, x.dtype), [], val=val)
    size = (*grid.size[:-1], x.size[order.index(1)])
    slopes = []
    for number in range(rank):

        def body(ops: Recorder, reduce: Reduce, index: Index, number: int = number) -> Value:
            channel, at = index[-1], index[:-1]
            total: Value | None = None
            for corner in _corners(ops, axes, places, at):
                place = _at(order, (at[0], channel), [tap.at for tap in corner])
                value = _within(ops, x.load(ops, place), corner)
                weight = _weight(ops, corner, slope_of=number)
                assert weight is not None  # the slope is one
                total = ops.mul(value, weight) if total is None else ops.fma(value, weight, total)
            assert total is not None  # a corner there always is
            return reduce("sum", ops.mul(total, grad.load(ops, _at(order, (at[0], channel), at[1:]))))

        slopes.append(
            ctx.reduce(size, [len(size) - 1], body, val=meta(grid.size[:-1], x.dtype), inputs=[x, grad, *places])
        )

    def load(ops: Recorder, index: Index) -> Value:
        total: Value | None = None
        for number, (axis, slope) in enumerate(zip(axes, slopes)):
            last = ops.constant(rank - 1 - number, torch.int64)
            factor = axis.multiplier(ops, grid.load(ops, index))
            value = ops.mul(slope.load(ops, index[:-1]), factor)
            here = ops.eq(ops.index_expr(index[-1], torch.int64), last)
            total = value if total is None else ops.where(here, value, total)
        assert total is not None  # a dimension there always is
        return total

    return ctx.lazy(load, [grid, *slopes], cost=16, count=30, val=val)
