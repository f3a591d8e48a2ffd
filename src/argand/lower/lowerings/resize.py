"""Images and signals in other sizes: nearest neighbours, linear and cubic interpolation, and their gradients.

Positions and weights are computed as eager computes them, with its roundings: a neighbour on the other side of a
rounding would be another value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import floor
from typing import Any

import torch

from argand.graph.sizes.expr import Const, Expr, as_int, exact_divide, sum_of
from argand.graph.sizes.symbolic import strided_meta
from argand.ir.loops import Value
from argand.lower.context import Context, math_dtype
from argand.lower.layout import dense_like
from argand.lower.lowerings.places.scatters import ACCUMULATED, refuse_unordered
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.shape import moved
from argand.lower.recorder import Recorder, index_of
from argand.lower.registry import NoLowering, Rule, lowers
from argand.lower.tensor import Index, Tensor
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

Tap = tuple[Value, "Value | None"]  # a place in a dimension, and its weight (None: 1)


def _rounded(number: float, math: torch.dtype) -> float:
    """`number` in the dtype of positions."""
    return number if math is torch.float64 else float(struct.unpack("f", struct.pack("f", number))[0])


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension that is resized.

    Arguments:
        size: before.
        count: after.
        corners: the first and the last elements are at the same places before and after.
        scale: distance of two elements after, in elements before.
        math: dtype of positions and weights.
    """

    size: int
    count: int
    corners: bool
    scale: float
    math: torch.dtype

    def _number(self, ops: Recorder, value: float) -> Value:
        return ops.constant(value, self.math)

    def _source(self, ops: Recorder, out: Expr) -> Value:
        """Where element `out` is, in elements before."""
        at = ops.index_expr(out, self.math)
        scale = self._number(ops, self.scale)
        if self.corners:
            return ops.mul(at, scale)
        return ops.fma(ops.add(at, self._number(ops, 0.5)), scale, self._number(ops, -0.5))

    def _inside(self, ops: Recorder, position: Value) -> Value:
        """A whole position, moved into the dimension."""
        last = ops.constant(self.size - 1, torch.int32)
        return ops.minimum(ops.maximum(position, ops.constant(0, torch.int32)), last)

    def at(self, ops: Recorder, place: Value) -> Expr:
        """A place in the dimension, to read there."""
        known = index_of(place)
        return ops.indirect_var(ops.to_dtype(place, torch.int64), Const(self.size), False) if known is None else known

    def nearest(self, ops: Recorder, out: Expr) -> list[Tap]:
        """The element that eager takes for `out`."""
        if self.size == self.count:
            return [(ops.index_expr(out, torch.int64), None)]
        source = ops.mul(ops.index_expr(out, self.math), self._number(ops, self.scale))
        return [(self._inside(ops, ops.to_dtype(ops.floor(source), torch.int32)), None)]

    def nearest_exact(self, ops: Recorder, out: Expr) -> list[Tap]:
        """The element whose middle is nearest."""
        if self.size == self.count and self.scale == 1.0:
            return [(ops.index_expr(out, torch.int64), None)]
        middle = ops.add(ops.index_expr(out, self.math), self._number(ops, 0.5))
        source = ops.mul(middle, self._number(ops, self.scale))
        return [(self._inside(ops, ops.to_dtype(ops.floor(source), torch.int32)), None)]

    def linear(self, ops: Recorder, out: Expr) -> list[Tap]:
        """The two neighbours and their weights; where a dimension stays, one twice: infinity times 0 is NaN."""
        if self.size == self.count:
            place = ops.index_expr(out, torch.int64)
            return [(place, None), (place, self._number(ops, 0.0))]
        source = ops.maximum(self._source(ops, out), self._number(ops, 0.0))
        low = ops.minimum(ops.to_dtype(source, torch.int32), ops.constant(self.size - 1, torch.int32))
        part = ops.sub(source, ops.to_dtype(low, self.math))
        part = ops.minimum(ops.maximum(part, self._number(ops, 0.0)), self._number(ops, 1.0))
        high = self._inside(ops, ops.add(low, ops.constant(1, torch.int32)))
        return [(low, ops.sub(self._number(ops, 1.0), part)), (high, part)]

    def cubic(self, ops: Recorder, out: Expr) -> list[Tap]:
        """Four neighbours and their weights (Keys' kernel, A = -0.75)."""
        source = self._source(ops, out)
        whole = ops.floor(source)
        first, part = ops.to_dtype(whole, torch.int32), ops.sub(source, whole)
        one, two = self._number(ops, 1.0), self._number(ops, 2.0)
        beside = ops.sub(one, part)
        weights = [
            self._far(ops, ops.add(part, one)),
            self._near(ops, part),
            self._near(ops, beside),
            self._far(ops, ops.sub(two, part)),
        ]
        steps = [self._inside(ops, ops.add(first, ops.constant(step, torch.int32))) for step in (-1, 0, 1, 2)]
        return list(zip(steps, weights))

    def _near(self, ops: Recorder, x: Value) -> Value:
        """((A + 2) x - (A + 3)) x x + 1, up to a distance of 1"""
        inner = ops.sub(ops.mul(self._number(ops, 1.25), x), self._number(ops, 2.25))
        return ops.add(ops.mul(ops.mul(inner, x), x), self._number(ops, 1.0))

    def _far(self, ops: Recorder, x: Value) -> Value:
        """((A x - 5 A) x + 8 A) x - 4 A, up to a distance of 2"""
        inner = ops.add(ops.mul(self._number(ops, -0.75), x), self._number(ops, 3.75))
        return ops.add(ops.mul(ops.sub(ops.mul(inner, x), self._number(ops, 6.0)), x), self._number(ops, 3.0))


Taps = Callable[[Axis, Recorder, Expr], list[Tap]]
UNROLLED = 8  # elements that an element is part of, along one dimension, which a loop body reads one by one


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to resize.

    Arguments:
        taps: the elements that an element is made of, along one dimension.
        has_corners: the op's arguments say where the corners are.
        nearest: 0 for interpolations; else what is added to a position before it is rounded down, doubled, and 1.
        reach: how many places on either side of its source an element is made of; 0 for the nearest.
    """

    taps: Taps
    has_corners: bool
    nearest: int = 0
    reach: int = 0


def _axes(
    inner: Sequence[Expr], outer: Sequence[Expr], mode: Mode, options: Sequence[Any], dtype: torch.dtype
) -> list[Axis]:
    """The dimensions that are resized, with what eager makes of the op's arguments."""
    math = torch.float64 if dtype is torch.float64 else torch.float32
    corners = bool(options[0]) if mode.has_corners and options else False
    scales = options[1:] if mode.has_corners else options
    axes = []
    for number, (before, after) in enumerate(zip(inner, outer)):
        size, count = as_int(before), as_int(after)
        if size is None or count is None or size == 0 or count == 0:
            raise NoLowering("resizing of unknown sizes")
        given = scales[number] if number < len(scales) else None
        refuse(given is not None and not isinstance(given, (int, float)), "a factor that varies")
        if corners:
            scale = _rounded((size - 1) / (count - 1), math) if count > 1 else 0.0
        else:
            scale = _rounded(1.0 / given if given is not None and given > 0 else size / count, math)
        axis = Axis(size, count, corners, scale, math)
        refuse(bool(mode.nearest) and not _agrees(axis, mode.nearest), "neighbours that eager's kernels disagree on")
        axes.append(axis)
    return axes


def _agrees(axis: Axis, kind: int) -> bool:
    """Whether the formulas that eager's kernels have for different layouts choose the same neighbours."""
    half = 0.5 * (kind - 1)

    def first(out: int) -> int:
        return floor(_rounded(_rounded(out + half, axis.math) * axis.scale, axis.math))

    def second(out: int) -> int:
        if kind == 1:
            return out >> 1 if axis.count == 2 * axis.size else first(out)
        place = max(_rounded(_rounded(out + half, axis.math) * axis.scale, axis.math) - 0.5, 0.0)
        return floor(_rounded(_rounded(place, axis.math) + 0.5, axis.math))

    last = axis.size - 1
    return all(min(first(out), last) == min(second(out), last) for out in range(axis.count))


def _points(ops: Recorder, axes: Sequence[Axis], taps: Taps, index: Index) -> Iterator[tuple[Index, Value | None]]:
    """The elements that element `index` is made of, and their weights."""
    along = [taps(axis, ops, position) for axis, position in zip(axes, index)]
    for chosen in product(*along):
        weight: Value | None = None
        for _, one in chosen:
            weight = one if weight is None else weight if one is None else ops.mul(weight, one)
        yield tuple([axis.at(ops, place) for axis, (place, _) in zip(axes, chosen)]), weight


def _summed(ops: Recorder, x: Tensor, lead: Index, index: Index, axes: Sequence[Axis], taps: Taps) -> Value:
    """Interpolation along the dimensions, the innermost first, as eager's kernels for rows do."""
    math = math_dtype(x.dtype)

    def along(number: int, place: Index) -> Value:
        if number == len(axes):
            return ops.to_dtype(x.load(ops, (*lead, *place)), math)
        total: Value | None = None
        for at, weight in taps(axes[number], ops, index[number]):
            value = along(number + 1, (*place, axes[number].at(ops, at)))
            value = value if weight is None else ops.mul(value, weight)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total

    return along(0, ())


def _resized(rank: int, mode: Mode) -> Rule:
    def rule(ctx: Context, x: Tensor, size: Any, *options: Any) -> Tensor:
        outer = ctx.sizes(ctx.val.shape)
        if mode.nearest == 1:
            enlarged = _by_whole_factors(ctx, x, outer, rank, options)
            if enlarged is not None:
                return enlarged
        refuse(not mode.nearest and not is_float(x), "interpolation of integers")
        axes = _axes(x.size[-rank:], outer[-rank:], mode, options, x.dtype)
        few = x.dtype is torch.float64 and mode.reach < 2 and axes[-1].count > axes[-1].size
        refuse(few and as_int(x.stride[-1]) == 1 and _looks_up_rows(ctx), "rows of doubles")
        ctx.realise(x)

        def load(ops: Recorder, index: Index) -> Value:
            lead, inner = index[:-rank], index[-rank:]
            if mode.nearest:
                place = [axis.at(ops, mode.taps(axis, ops, at)[0][0]) for axis, at in zip(axes, inner)]
                return x.load(ops, (*lead, *place))
            return ops.to_dtype(_summed(ops, x, lead, inner, axes, mode.taps), x.dtype)

        taps = 1 if mode.nearest else (2 * mode.reach) ** rank
        return ctx.lazy(load, [x], cost=8 * rank + 3 * taps, count=10 * rank + 4 * taps)

    return rule


def _looks_up_rows(ctx: Context) -> bool:
    """Whether memory runs along a dimension that is resized, where eager's kernels are as fast."""
    return as_int(ctx.sizes(ctx.val.stride())[-1]) == 1


def _by_whole_factors(
    ctx: Context, x: Tensor, outer: tuple[Expr, ...], rank: int, scales: Sequence[Any]
) -> Tensor | None:
    """Nearest neighbours in an enlargement by whole factors: no rounding can choose another one there."""
    factors = []
    for number, dim in enumerate(range(x.ndim - rank, x.ndim)):
        factor = exact_divide(outer[dim], x.size[dim])
        if factor is None or outer[dim] == 0:
            return None
        given = scales[number] if number < len(scales) else None
        if given is not None and as_int(factor) != given:
            return None
        factors.append(factor)

    def place(ops: Recorder, index: Index) -> Index:
        inner = [position // factor for position, factor in zip(index[-rank:], factors)]
        return (*index[:-rank], *(ops.simplifier.simplify(position) for position in inner))

    ctx.before_broadcast(x, 4)
    return moved(ctx, x, place)


@dataclass(frozen=True, slots=True)
class Window:
    """Which elements after an element before is part of: `most` ones from `(element * step + first) // per` on."""

    step: int
    first: int
    per: int
    most: int


def _window(axis: Axis, mode: Mode) -> Window:
    """One that holds all that an element is part of, and few others."""
    reach, last, slack = mode.reach, axis.size - 1, 1e-6 * (axis.size + 1)  # what positions may be off by
    half = 0.5 * (mode.nearest - 1) if mode.nearest else 0.0 if axis.corners else 0.5
    starts, ends = [axis.count] * axis.size, [-1] * axis.size
    for out in range(axis.count):
        source = (out + half) * axis.scale - (0.0 if mode.nearest else half)
        source = max(source, 0.0) if reach == 1 else source
        lowest = min(max(floor(source - slack) - max(reach - 1, 0), 0), last)
        highest = min(max(floor(source + slack) + reach, 0), last)
        for place in range(lowest, highest + 1):
            starts[place], ends[place] = min(starts[place], out), max(ends[place], out)
    step, per = (axis.count - 1, last) if axis.corners and last else (axis.count, axis.size)
    begun = [(place, start) for place, start in enumerate(starts) if start < axis.count]
    first = min((start + 1) * per - 1 - place * step for place, start in begun)  # the latest line that is below all
    most = max(1 + end - (place * step + first) // per for place, end in enumerate(ends))
    return Window(step, first, per, max(most, 1))


def _handed(ops: Recorder, grad: Tensor, index: Index, dim: int, axis: Axis, taps: Taps, out: Expr) -> Value:
    """What the element at `index` gets of the gradient of element `out` along a dimension: nothing, or parts of it."""
    math = math_dtype(grad.dtype)
    value = ops.index_expr(out, torch.int64)
    inside = ops.logical_and(
        ops.ge(value, ops.constant(0, torch.int64)), ops.lt(value, ops.constant(axis.count, torch.int64))
    )
    whole = ops.masked(inside, lambda: ops.to_dtype(grad.load(ops, (*index[:dim], out, *index[dim + 1 :])), math), 0.0)
    total: Value | None = None
    for place, weight in taps(axis, ops, out):
        here = ops.logical_and(inside, ops.eq(place, ops.index_expr(index[dim], place.dtype)))
        part = ops.where(here, whole if weight is None else ops.mul(whole, weight), ops.constant(0.0, math))
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return total


def _gathered(ctx: Context, grad: Tensor, dim: int, axis: Axis, mode: Mode, last: bool) -> Tensor:
    """The gradient where one dimension is as it was before: each element is handed its parts."""
    window = _window(axis, mode)
    size = (*grad.size[:dim], Const(axis.size), *grad.size[dim + 1 :])
    meta = ctx.val if last else strided_meta(size, dense_like(size, grad.stride, ctx.hints), grad.dtype)
    ctx.realise(grad)

    def start(index: Index) -> Expr:
        return (index[dim] * window.step + window.first) // window.per

    if window.most > UNROLLED:

        def body(ops: Recorder, total: Callable[[str, Value], Value], index: Index) -> Value:
            own, number = index[:-1], index[-1]
            out = ops.simplifier.simplify(start(own) + number)
            return ops.to_dtype(total("sum", _handed(ops, grad, own, dim, axis, mode.taps, out)), grad.dtype)

        return ctx.reduce((*size, Const(window.most)), [grad.ndim], body, val=meta, inputs=[grad])

    def load(ops: Recorder, index: Index) -> Value:
        outs = [ops.simplifier.simplify(start(index) + number) for number in range(window.most)]
        parts = [_handed(ops, grad, index, dim, axis, mode.taps, out) for out in outs]
        return ops.to_dtype(reduce(ops.add, parts), grad.dtype)

    return ctx.lazy(load, [grad], cost=12 * window.most, count=16 * window.most, val=meta)


def _gradient(rank: int, mode: Mode) -> Rule:
    """Each element gets its parts of the elements that are made of it, along one dimension after the other."""

    def rule(ctx: Context, grad: Tensor, size: Any, whole: Any, *options: Any) -> Tensor:
        dtype: torch.dtype = ctx.val.dtype
        refuse(dtype not in ACCUMULATED or not dtype.is_floating_point, "gradients in reduced precision")
        refuse_unordered(ctx)
        refuse(ctx.device.type != "cpu", "sums in any order")
        shape = ctx.sizes(ctx.val.shape)
        axes = _axes(shape[-rank:], grad.size[-rank:], mode, options, dtype)
        refuse(any(extent == 0 for extent in grad.size), "a gradient of nothing")
        kept = all(axis.count == axis.size for axis in axes)
        if mode.reach == 2 and kept:  # eager copies, also where a factor is given
            return ctx.lazy(grad.load, [grad])
        if all(axis.count >= axis.size for axis in axes) and (mode.reach == 2 or _looks_up_rows(ctx)):
            for number, axis in enumerate(axes):
                grad = _gathered(ctx, grad, grad.ndim - rank + number, axis, mode, number == rank - 1)
            return grad
        refuse(mode.reach < 2 and _looks_up_rows(ctx), "rows whose elements are looked up one by one")
        buffer = ctx.new_buffer(shape, ctx.sizes(ctx.val.stride()), dtype, ctx.device)
        ref = ctx.ref_of(buffer)
        ctx.store(ctx.lazy(lambda ops, index: ops.constant(0.0, dtype), []), ref, creates=True)
        ctx.realise(grad)
        ranges, dims, index = ctx.loop(grad.size, range(grad.ndim))
        ops = Recorder(ranges)
        ops.origin = ctx.origin
        value = grad.load(ops, index)
        for place, weight in _points(ops, axes, mode.taps, index[-rank:]):
            part = value if weight is None else ops.mul(value, weight)
            terms = [at * step for at, step in zip((*index[:-rank], *place), buffer.stride)]
            ops.store(buffer.name, sum_of(terms), part, "add")
        ctx.add_loop(ops, dims, grad.size, (), (), [], [buffer.name])
        return ctx.from_ref(ref, dtype, ctx.device)

    return rule


_MODES = {
    "upsample_nearest{}d": ((1, 2, 3), Mode(Axis.nearest, False, nearest=1)),
    "_upsample_nearest_exact{}d": ((1, 2, 3), Mode(Axis.nearest_exact, False, nearest=2)),
    "upsample_linear{}d": ((1,), Mode(Axis.linear, True, reach=1)),
    "upsample_bilinear{}d": ((2,), Mode(Axis.linear, True, reach=1)),
    "upsample_trilinear{}d": ((3,), Mode(Axis.linear, True, reach=1)),
    "upsample_bicubic{}d": ((2,), Mode(Axis.cubic, True, reach=2)),
}

for _name, (_ranks, _mode) in _MODES.items():
    for _rank in _ranks:
        lowers(getattr(aten, _name.format(_rank)).default)(_resized(_rank, _mode))
        lowers(getattr(aten, f"{_name.format(_rank)}_backward").default)(_gradient(_rank, _mode))
