"""Views: index arithmetic over lazy tensors, strides over buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.errors import LoweringError
from argand.graph.sizes.expr import ONE, ZERO, Expr, Simplifier
from argand.ir.loops import TensorRef
from argand.lower.context import LOOP_DTYPES, Context
from argand.lower.layout import permute_ref, reshape_groups, reshape_index, reshape_stride
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering, lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten


def wrap(dim: int, ndim: int) -> int:
    """A dimension counted from either end, counted from the front."""
    return dim + max(ndim, 1) if dim < 0 else dim


@lowers(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, view=True)
def view(ctx: Context, x: Tensor, size: Any, stride: Any = None) -> Tensor:
    return reshaped(ctx, x, ctx.sizes(ctx.val.shape), ctx.sizes(ctx.val.stride()))


def reshaped(ctx: Context, x: Tensor, size: tuple[Expr, ...], like: tuple[Expr, ...]) -> Tensor:
    """`x` with another size; `like` are eager's strides, taken for dimensions of size one."""
    if size == x.size:
        return x

    def to_ref(ref: TensorRef) -> TensorRef | None:
        stride = reshape_stride(ref.size, ref.stride, size)
        if stride is None:
            return None
        stride = tuple([like[dim] if extent == 1 else stride[dim] for dim, extent in enumerate(size)])
        return TensorRef(ref.buffer, size, stride, ref.offset, ref.dtype)

    if x.ref is not None:
        ref = to_ref(x.ref)
        if ref is not None:
            return ctx.from_ref(ref, x.dtype, x.device)
    empty = any(extent == 0 for extent in size)
    groups = [] if empty else reshape_groups(x.size, size)
    if groups is None:
        raise NoLowering("a reshape whose element counts cannot be compared")
    old = x.size

    def index(ops: Recorder, position: Index) -> Index:
        return tuple([ops.simplifier.simplify(part) for part in reshape_index(groups, old, size, position)])

    in_turns = bool(size) and Simplifier({}).simplify(size[-1] % 2) == 0
    return ctx.view(x, size, index, to_ref, stride=like, takes_turns=in_turns)


def permuted(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    """`x` with its dimensions in the order `dims`."""
    if list(dims) == list(range(x.ndim)):
        return x
    places = [0] * len(dims)
    for place, dim in enumerate(dims):
        places[dim] = place
    size = tuple([x.size[dim] for dim in dims])
    stride = tuple([x.stride[dim] for dim in dims])
    return ctx.view(
        x,
        size,
        lambda ops, position: tuple([position[place] for place in places]),
        lambda ref: permute_ref(ref, dims),
        stride=stride,
        places=places,
    )


lowers(aten.permute.default, view=True)(lambda ctx, x, dims: permuted(ctx, x, [wrap(dim, x.ndim) for dim in dims]))


@lowers(aten.transpose.int, view=True)
def transpose(ctx: Context, x: Tensor, a: int, b: int) -> Tensor:
    dims = list(range(x.ndim))
    if dims:
        a, b = wrap(a, x.ndim), wrap(b, x.ndim)
        dims[a], dims[b] = dims[b], dims[a]
    return permuted(ctx, x, dims)


lowers(aten.t.default, view=True)(lambda ctx, x: permuted(ctx, x, list(range(x.ndim))[::-1]))


@lowers(aten.unsqueeze.default, view=True)
def unsqueeze(ctx: Context, x: Tensor, dim: int) -> Tensor:
    dim = dim + x.ndim + 1 if dim < 0 else dim
    size, like = ctx.sizes(ctx.val.shape), ctx.sizes(ctx.val.stride())

    def to_ref(ref: TensorRef) -> TensorRef:
        step = ref.size[dim] * ref.stride[dim] if dim < len(ref.size) else ONE
        return TensorRef(ref.buffer, size, (*ref.stride[:dim], step, *ref.stride[dim:]), ref.offset, ref.dtype)

    def index(ops: Recorder, position: Index) -> Index:
        return position[:dim] + position[dim + 1 :]

    places = [*range(dim), *range(dim + 1, len(size))]
    return ctx.view(x, size, index, to_ref, stride=like, places=places)


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, view=True)
def squeeze(ctx: Context, x: Tensor, dims: Any = None) -> Tensor:
    if dims is None:
        chosen = set(range(x.ndim))
    else:
        chosen = {wrap(dim, x.ndim) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}
    kept = [dim for dim in range(x.ndim) if dim not in chosen or x.size[dim] != 1]
    return keep_dims(ctx, x, kept)


def keep_dims(ctx: Context, x: Tensor, kept: Sequence[int]) -> Tensor:
    """`x` without the dimensions that are not in `kept`, each of size one."""
    if len(kept) == x.ndim:
        return x
    places = {dim: place for place, dim in enumerate(kept)}
    ndim = x.ndim

    def index(ops: Recorder, position: Index) -> Index:
        return tuple([position[places[dim]] if dim in places else ZERO for dim in range(ndim)])

    size, stride = tuple([x.size[dim] for dim in kept]), tuple([x.stride[dim] for dim in kept])
    return ctx.view(x, size, index, lambda ref: permute_ref(ref, kept), stride=stride)


@lowers(aten.expand.default, view=True)
def expand(ctx: Context, x: Tensor, size: Any, *, implicit: bool = False) -> Tensor:
    return expanded(ctx, x, ctx.sizes(ctx.val.shape))


def expanded(ctx: Context, x: Tensor, size: tuple[Expr, ...]) -> Tensor:
    """`x` broadcast to `size`."""
    if size == x.size:
        return x
    lead = len(size) - x.ndim
    grown = [lead + dim for dim in range(x.ndim) if x.size[dim] is not size[lead + dim]]
    if any(x.size[dim - lead] != 1 for dim in grown):
        raise NoLowering(f"an expansion of {x.size} to {size}")
    factor = 1
    for dim in [*range(lead), *grown]:
        factor *= ctx.hint(size[dim])
    ctx.before_broadcast(x, factor)

    def to_ref(ref: TensorRef) -> TensorRef:
        stride = [ZERO if lead + dim in grown else step for dim, step in enumerate(ref.stride)]
        for dim in reversed(range(lead if stride else 0)):  # a dimension of one is laid out as if it could grow
            stride.insert(0, size[dim + 1] * stride[0] if size[dim] == 1 else ZERO)
        stride = [ZERO] * (len(size) - len(stride)) + stride
        return TensorRef(ref.buffer, size, tuple(stride), ref.offset, ref.dtype)

    def index(ops: Recorder, position: Index) -> Index:
        return tuple([ZERO if dim in grown else position[dim] for dim in range(lead, len(size))])

    result = ctx.view(x, size, index, to_ref, places=range(lead, len(size)))
    result.repeated = x
    return result


def sliced(ctx: Context, x: Tensor, dim: int, start: Expr, length: Expr, step: Expr) -> Tensor:
    """`x[..., start : start + length*step : step, ...]`."""
    if start == 0 and step == 1 and length is x.size[dim]:
        return x

    def to_ref(ref: TensorRef) -> TensorRef:
        size = (*ref.size[:dim], length, *ref.size[dim + 1 :])
        stride = (*ref.stride[:dim], ref.stride[dim] * step, *ref.stride[dim + 1 :])
        return TensorRef(ref.buffer, size, stride, ref.offset + start * ref.stride[dim], ref.dtype)

    def index(ops: Recorder, position: Index) -> Index:
        return (*position[:dim], position[dim] * step + start, *position[dim + 1 :])

    size = (*x.size[:dim], length, *x.size[dim + 1 :])
    stride = (*x.stride[:dim], x.stride[dim] * step, *x.stride[dim + 1 :])
    return ctx.view(x, size, index, to_ref, stride=stride)


def clamp_index(position: Any, extent: Any) -> Any:
    """A slice bound as Python clamps it; `extent` is the size of the dimension."""
    if position < 0:
        position = position + extent
    if position < 0:
        return 0
    return extent if position > extent else position


def slice_start(ctx: Context, x: Tensor, dim: int, start: Any) -> Expr:
    """Where a slice starts, for a start of either sign."""
    if start is None:
        return ZERO
    extent = x.size[dim]
    known = _as_plain(extent)
    if known is None or isinstance(start, Expr):
        # a generalised graph has clamped it: it lies between 0 and the size
        if isinstance(start, Expr) or start >= 0:
            return ctx.expr(start)
        raise NoLowering("a slice from the end of a dimension of unknown size")
    return ctx.expr(clamp_index(start, known))


def _as_plain(extent: Expr) -> int | None:
    return getattr(extent, "value", None)


@lowers(aten.slice.Tensor, view=True)
def slice_(ctx: Context, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    dim = wrap(dim, x.ndim)
    length = ctx.sizes(ctx.val.shape)[dim]
    return sliced(ctx, x, dim, slice_start(ctx, x, dim, start), length, ctx.expr(step))


@lowers(aten.select.int, view=True)
def select(ctx: Context, x: Tensor, dim: int, position: Any) -> Tensor:
    dim = wrap(dim, x.ndim)
    at = ctx.expr(position)
    if isinstance(position, int) and position < 0:
        at = at + x.size[dim]
    return selected(ctx, x, dim, at)


def selected(ctx: Context, x: Tensor, dim: int, at: Expr) -> Tensor:
    """`x[..., at, ...]`."""

    def to_ref(ref: TensorRef) -> TensorRef:
        return TensorRef(
            ref.buffer,
            ref.size[:dim] + ref.size[dim + 1 :],
            ref.stride[:dim] + ref.stride[dim + 1 :],
            ref.offset + at * ref.stride[dim],
            ref.dtype,
        )

    size, stride = x.size[:dim] + x.size[dim + 1 :], x.stride[:dim] + x.stride[dim + 1 :]
    return ctx.view(x, size, lambda ops, p: (*p[:dim], at, *p[dim:]), to_ref, stride=stride)


@lowers(aten.diagonal.default, view=True)
def diagonal(ctx: Context, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = wrap(dim1, x.ndim), wrap(dim2, x.ndim)
    kept = [dim for dim in range(x.ndim) if dim not in (a, b)]
    length = ctx.sizes(ctx.val.shape)[-1]
    skip_a, skip_b = ctx.expr(max(-offset, 0)), ctx.expr(max(offset, 0))
    if length == 0:
        skip_a = skip_b = ZERO

    def to_ref(ref: TensorRef) -> TensorRef:
        size = (*(ref.size[dim] for dim in kept), length)
        stride = (*(ref.stride[dim] for dim in kept), ref.stride[a] + ref.stride[b])
        start = ref.offset + skip_a * ref.stride[a] + skip_b * ref.stride[b]
        return TensorRef(ref.buffer, size, stride, start, ref.dtype)

    def index(ops: Recorder, position: Index) -> Index:
        full: list[Expr] = [ZERO] * (len(kept) + 2)
        for place, dim in enumerate(kept):
            full[dim] = position[place]
        full[a] = position[-1] + skip_a
        full[b] = position[-1] + skip_b
        return tuple(full)

    return ctx.view(x, ctx.sizes(ctx.val.shape), index, to_ref)


@lowers(aten.unfold.default, view=True)
def unfold(ctx: Context, x: Tensor, dim: int, length: int, step: int) -> Tensor:
    if x.ndim == 0:
        raise NoLowering("unfold of a 0-d tensor")
    dim = wrap(dim, x.ndim)
    size = ctx.sizes(ctx.val.shape)

    def to_ref(ref: TensorRef) -> TensorRef:
        stride = (*ref.stride[:dim], ref.stride[dim] * step, *ref.stride[dim + 1 :], ref.stride[dim])
        return TensorRef(ref.buffer, size, stride, ref.offset, ref.dtype)

    def index(ops: Recorder, position: Index) -> Index:
        return (*position[:dim], position[dim] * step + position[-1], *position[dim + 1 : -1])

    return ctx.view(x, size, index, to_ref)


@lowers(aten.as_strided.default, view=True)
def as_strided(ctx: Context, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Tensor:
    """Over the storage, as eager: the tensor is realised with eager's layout, whose offset in it is known."""
    ref = ctx.realise(x)
    if ctx.node is None:
        raise NoLowering("no node to read the layout from")
    source = ctx.node.args[0].meta["val"]
    eager, part = ctx.sizes(source.stride()), ctx.sizes(size)
    if ZERO not in part and any(ref.stride[dim] is not eager[dim] for dim in range(x.ndim) if x.size[dim] != 1):
        raise LoweringError(
            f"as_strided reads a tensor whose memory has gaps (strides {tuple(source.stride())}), which is not rebuilt",
            remedy="take a contiguous copy of it first",
        )
    # relative to the tensor's own place in its storage, which ours mirrors
    move = ctx.expr(source.storage_offset() if offset is None else offset) - ctx.expr(source.storage_offset())
    moved = TensorRef(ref.buffer, part, ctx.sizes(stride), ref.offset + move, ref.dtype)
    return ctx.from_ref(moved, x.dtype, x.device)


@lowers(aten.view.dtype, view=True)
def view_dtype(ctx: Context, x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype is dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize or torch.bool in (x.dtype, dtype):
        raise NoLowering("bits of one dtype as another of a different width")
    if x.dtype not in LOOP_DTYPES or dtype not in LOOP_DTYPES:
        raise NoLowering(f"loops do not compute with {x.dtype} or {dtype}")
    return ctx.lazy(lambda ops, index: ops.bitcast(x.load(ops, index), dtype), [x])


@lowers(aten.view_as_real.default, view=True)
def view_as_real(ctx: Context, x: Tensor) -> Tensor:
    """The parts of what lies in memory: loops read complex buffers as the real ones that they are."""
    ref, dtype = ctx.realise(x), ctx.val.dtype
    stride = (*[step * 2 for step in ref.stride], ONE)
    return ctx.from_ref(TensorRef(ref.buffer, ctx.sizes(ctx.val.shape), stride, ref.offset * 2, dtype), dtype, x.device)


@lowers(aten.view_as_complex.default)
def view_as_complex(ctx: Context, x: Tensor) -> Tensor:
    """What lies in memory as pairs is complex; else the parts are stored as such."""
    size, dtype = x.size[:-1], ctx.val.dtype
    if x.ref is not None:
        if x.ref.stride[-1] != 1:
            raise NoLowering("parts that are not beside each other")
        halves = [step // 2 for step in (*x.ref.stride[:-1], x.ref.offset)]
        if any(half * 2 != step for half, step in zip(halves, (*x.ref.stride[:-1], x.ref.offset))):
            raise NoLowering("parts at odd places")
        return ctx.from_ref(TensorRef(x.ref.buffer, size, tuple(halves[:-1]), halves[-1], dtype), dtype, x.device)
    buffer = ctx.new_buffer(size, ctx.sizes(ctx.val.stride()), dtype, x.device)
    stride = (*[step * 2 for step in buffer.stride], ONE)
    ctx.store(x, TensorRef(buffer.name, x.size, stride, ZERO, x.dtype), creates=True)
    return ctx.from_ref(ctx.ref_of(buffer), dtype, x.device)
