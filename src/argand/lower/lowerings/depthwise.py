"""Depthwise convolutions (one channel a group) of images and rows, and their gradients: sums over small windows.

What stands around such a convolution is fused with it, which a call of a library prevents, and a library does little
better than a loop: there is hardly more arithmetic than memory. `Target.depthwise_taps` says which become loops.
Sums are accumulated in the dtype of computation; what lies outside contributes nothing, whatever the weight is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from typing import Any

import torch

from argand.graph.sizes.expr import ONE, ZERO, Const, Expr
from argand.graph.sizes.symbolic import contiguous_meta
from argand.ir.loops import Value
from argand.ir.target import Target
from argand.lower.context import Context, math_dtype
from argand.lower.lowerings.norms import uses
from argand.lower.lowerings.pointwise import is_float, refuse
from argand.lower.lowerings.pools import Place, Windows, both
from argand.lower.lowerings.reductions import reduced
from argand.lower.recorder import Recorder
from argand.lower.registry import lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten
# Of windows that are loops on a CPU whatever the layout: of rows, which the library lays out anew, and of few channels,
# of which it computes sixteen.
_MOST_TAPS_OF_ROWS, _MOST_TAPS_OF_CHANNELS = 32, {4: 121, 12: 25}


def is_depthwise(x: Sequence[Any], weight: Sequence[Any], transposed: bool, groups: int) -> bool:
    """Whether a convolution of these sizes (some may be symbols) has one channel a group, of images or rows."""
    if transposed or len(x) not in (3, 4) or len(x) != len(weight) or 0 in x:
        return False
    known = all(isinstance(n, int) for n in (x[1], *weight))
    return known and groups == x[1] == weight[0] and weight[1] == 1 and prod(weight) > 0


def becomes_loops(target: Target | None, dtype: torch.dtype, window: Sequence[int], innermost: bool) -> bool:
    """Whether a depthwise convolution is a loop nest on a target.

    Arguments:
        innermost: whether the channels of its result, or of the gradient of its input, are innermost.
    """
    if target is None or prod(window) > target.depthwise_taps:
        return False
    return not target.depthwise_innermost or (innermost and math_dtype(dtype) is dtype)


def has_few_channels(groups: int) -> bool:
    """Whether neighbouring channels fill no vector, so that they need not be neighbours."""
    return groups <= max(_MOST_TAPS_OF_CHANNELS)


def _chosen(
    ctx: Context, x: Tensor, weight: Tensor, innermost: bool, transposed: bool, groups: int, most_taps: int = 0
) -> None:
    """Leave to ATen what is no loop nest.

    Arguments:
        innermost: as `becomes_loops` has it.
        most_taps: elements of the largest windows that are loops on a CPU all the same.
    """
    sizes: list[list[Any]] = [[getattr(n, "value", n) for n in tensor.size] for tensor in (x, weight)]
    refuse(not is_depthwise(sizes[0], sizes[1], transposed, groups), "a convolution for the library")
    refuse(not is_float(x) or x.dtype is not weight.dtype, "a convolution of two dtypes")
    target = ctx.targets(ctx.device)
    host = target is not None and target.host_memory and math_dtype(x.dtype) is x.dtype
    loops = becomes_loops(target, x.dtype, sizes[1][2:], innermost) or (host and prod(sizes[1][2:]) <= most_taps)
    refuse(not loops, "a convolution for the library")


@lowers(aten.convolution.default, else_kernel=True)
def convolution(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    turned_rows = x.ndim == 3 and x.stride[1] is ONE
    innermost = channels_innermost(ctx, ctx.val)
    of_channels = next((taps for most, taps in _MOST_TAPS_OF_CHANNELS.items() if groups <= most), 0)
    rows = x.ndim == 3 or (x.size[2] is ONE and weight.size[2] is ONE)
    most_taps = max(of_channels, _MOST_TAPS_OF_ROWS if rows else 0)
    _chosen(ctx, x, weight, innermost, transposed, groups, most_taps)
    windows = Windows(_window(weight), stride, padding, dilation, x.size[2:])
    ctx.realise(x)
    factors = _Factors(ctx, weight, innermost or turned_rows)
    math = math_dtype(x.dtype)

    def load(ops: Recorder, index: Index) -> Value:
        places = [windows.along(ops, axis, out) for axis, out in enumerate(index[2:])]
        total = _sum(ops, x, factors, index, places, math)
        if bias is not None:
            total = ops.add(total, ops.to_dtype(bias.load(ops, (index[1],)), math))
        return ops.to_dtype(total, x.dtype)

    taps = prod(windows.size)
    inputs = [x, factors.held] if bias is None else [x, factors.held, bias]
    result = ctx.lazy(load, inputs, cost=4 * taps, count=5 * taps)
    ctx.realise(result)
    return result


def _window(weight: Tensor) -> list[int]:
    return [extent.value for extent in weight.size[2:] if isinstance(extent, Const)]


def channels_innermost(ctx: Context, val: Any) -> bool:
    """Whether the channels of a tensor (of more than one) are what memory is contiguous along."""
    return ctx.sizes(val.stride())[1] == 1


class _Factors:
    """The weight as loops read it.

    Where channels are innermost, neighbouring channels are read at once, so their numbers are made neighbours.

    Attributes:
        held: the tensor that is read.
    """

    def __init__(self, ctx: Context, weight: Tensor, innermost: bool) -> None:
        self.turned = innermost
        self.held = weight
        if innermost:
            size = (*weight.size[2:], weight.size[0])

            def load(ops: Recorder, index: Index) -> Value:
                return weight.load(ops, (index[-1], ZERO, *index[:-1]))

            self.held = ctx.lazy(load, [weight], cost=0, val=contiguous_meta(size, weight.dtype))
            ctx.realise(self.held)

    def at(self, channel: Expr, place: Sequence[int]) -> Index:
        """Where the number of a channel for an element of the window is."""
        taps = tuple(map(Const, place))
        return (*taps, channel) if self.turned else (channel, ZERO, *taps)


def _sum(
    ops: Recorder, x: Tensor, factors: _Factors, index: Index, places: Sequence[Sequence[Place]], math: torch.dtype
) -> Value:
    """The products of a window's elements and their factors, added up row by row."""
    total: Value = ops.constant(0.0, math)
    for taps in itertools.product(*map(enumerate, places)):
        inside = reduce(lambda condition, one: both(ops, condition, one[1][1]), taps, None)
        place = (*index[:2], *[at for _, (at, _) in taps])
        factor = ops.to_dtype(factors.held.load(ops, factors.at(index[1], [number for number, _ in taps])), math)
        longer = partial(_longer, ops, x, place, factor, total)
        total = longer() if inside is None else ops.masked(inside, longer, total)
    return total


def _longer(ops: Recorder, x: Tensor, place: Index, factor: Value, total: Value) -> Value:
    return ops.fma(ops.to_dtype(x.load(ops, place), total.dtype), factor, total)


class _Reached:
    """Which windows an element of the input is in: where the gradients of its convolution's results lie.

    Arguments:
        windows: of the convolution.
        extent: sizes of the result.
    """

    def __init__(self, windows: Windows, extent: Sequence[Expr]) -> None:
        self.windows = windows
        self.extent = tuple(extent)

    def along(self, ops: Recorder, axis: int, position: Expr) -> list[Place]:
        """For each element of a window, the result whose window has `position` there."""
        windows = self.windows
        stride = windows.stride[axis]
        places: list[Place] = []
        for number in range(windows.size[axis]):
            start = position + windows.padding[axis] - number * windows.dilation[axis]
            at, inside = windows.place(ops, start // stride, self.extent[axis])
            if stride > 1:
                rest = ops.index_expr(start % stride, torch.int64)
                inside = both(ops, inside, ops.eq(rest, ops.constant(0, torch.int64)))
            places.append((at, inside))
        return places


@lowers(aten.convolution_backward.default, else_kernel=True)
def convolution_backward(
    ctx: Context,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """The gradient of the input is a loop nest, and that of the weight where the target says so."""
    wanted = [bool(mask[place]) and uses(ctx, place) for place in range(3)]
    refuse(not wanted[0] or grad.dtype is not x.dtype, "gradients of the parameters alone")
    _chosen(ctx, x, weight, channels_innermost(ctx, ctx.val[0]), transposed, groups)
    windows = Windows(_window(weight), stride, padding, dilation, x.size[2:])
    val = ctx.val
    ctx.realise(grad)
    of_input = _input_gradient(ctx, grad, x, weight, windows, val[0])
    of_weight = of_bias = None
    target = ctx.targets(ctx.device)
    if target is not None and target.depthwise_weights:
        if wanted[1]:
            of_weight = _weight_gradient(ctx, grad, x, weight, windows, val[1])
        if wanted[2]:
            dims = [0, *range(2, x.ndim)]
            of_bias = reduced(ctx, grad, dims, "sum", dtype=math_dtype(x.dtype), val=val[2])
    elif any(wanted[1:]):
        rest = [False, *wanted[1:]]
        ctx.val = tuple(meta if asked else None for meta, asked in zip(val, rest))
        given = (grad, x, weight, bias_size, stride, padding, dilation, transposed, output_padding, groups, rest)
        _, of_weight, of_bias = ctx.extern(aten.convolution_backward.default, given, {})
        ctx.val = val
    return (of_input, of_weight, of_bias)


def _input_gradient(ctx: Context, grad: Tensor, x: Tensor, weight: Tensor, windows: Windows, val: Any) -> Tensor:
    reached = _Reached(windows, grad.size[2:])
    factors = _Factors(ctx, weight, channels_innermost(ctx, val))
    math = math_dtype(x.dtype)

    def load(ops: Recorder, index: Index) -> Value:
        places = [reached.along(ops, axis, position) for axis, position in enumerate(index[2:])]
        return ops.to_dtype(_sum(ops, grad, factors, index, places, math), x.dtype)

    taps = prod(windows.size)
    gradient = ctx.lazy(load, [grad, factors.held], cost=4 * taps, count=5 * taps, val=val)
    ctx.realise(gradient)
    return gradient


def _weight_gradient(ctx: Context, grad: Tensor, x: Tensor, weight: Tensor, windows: Windows, val: Any) -> Tensor:
    """The sum, over all windows, of what each has at a place times the gradient of its result.

    Neighbouring results are numbers of neighbouring channels, where these are neighbours in memory.
    """
    ctx.realise(x)
    math, rank = math_dtype(x.dtype), len(windows.size)
    size = (*map(Const, windows.size), weight.size[0], grad.size[0], *grad.size[2:])

    def body(ops: Recorder, reduce_: Any, index: Index) -> Value:
        place, channel, image, outs = index[:rank], index[rank], index[rank + 1], index[rank + 2 :]
        value = ops.to_dtype(grad.load(ops, (image, channel, *outs)), math)
        inside: Value | None = None
        position: list[Expr] = []
        for axis, (number, out) in enumerate(zip(place, outs)):
            start = out * windows.stride[axis] - windows.padding[axis] + number * windows.dilation[axis]
            at, within = windows.place(ops, start, x.size[2 + axis])
            position.append(at)
            inside = both(ops, inside, within)

        def product() -> Value:
            return ops.mul(value, ops.to_dtype(x.load(ops, (image, channel, *position)), math))

        return reduce_("sum", product() if inside is None else ops.masked(inside, product, 0.0))

    row = contiguous_meta(size[: rank + 1], math)
    sums = ctx.reduce(size, list(range(rank + 1, len(size))), body, val=row, inputs=[grad, x])

    def load(ops: Recorder, index: Index) -> Value:
        return ops.to_dtype(sums.load(ops, (*index[2:], index[0])), x.dtype)

    return ctx.lazy(load, [sums], cost=0, val=val)
