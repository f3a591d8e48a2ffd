"""Reductions: sums, extrema, moments, norms, softmax; cumulative sums, products and sums of exponentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.sizes.expr import Expr, as_int, product
from argand.graph.sizes.symbolic import MetaTensor, contiguous_meta, like_meta
from argand.ir.loops import Value
from argand.ir.target import ANY_LENGTH
from argand.lower.context import REDUCED_FLOATS, Context, math_dtype
from argand.lower.elementwise import pointwise
from argand.lower.lowerings.pointwise import float_power, is_float, refuse
from argand.lower.lowerings.views import reshaped, wrap
from argand.lower.recorder import Recorder
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Index, Tensor

aten = torch.ops.aten


def all_or(dims: Any, ndim: int) -> list[int]:
    """Dimensions given as None, an empty list (both: all), an int or a list, sorted and counted from the front."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(ndim))
    listed = dims if isinstance(dims, (list, tuple)) else [dims]
    if ndim == 0:
        return []
    return sorted({wrap(dim, ndim) for dim in listed})


def count_of(x: Tensor, dims: Sequence[int]) -> Expr:
    """Number of elements that one result element reduces."""
    return product([x.size[dim] for dim in dims])


def reduced(
    ctx: Context,
    x: Tensor,
    dims: Sequence[int],
    kind: str,
    *,
    dtype: torch.dtype,
    before: Any = None,
    after: Any = None,
    val: MetaTensor | None = None,
    others: Sequence[Tensor] = (),
) -> Tensor:
    """`kind` over `dims` of `x`, converted to `dtype` first; `before(ops, value, index)`, `after(ops, value)`."""
    meta = ctx.val if val is None else val

    def body(ops: Recorder, reduce: Any, index: Index) -> Value:
        value = ops.to_dtype(x.load(ops, index), dtype)
        if before is not None:
            value = before(ops, value, index)
        value = reduce(kind, value)
        if after is not None:
            value = after(ops, value)
        return ops.to_dtype(value, meta.dtype)

    return ctx.reduce(x.size, dims, body, val=meta, inputs=[x, *others])


# --- sums and products


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _total(ctx, x, all_or(dims, x.ndim), "sum")


def accumulator(ctx: Context, x: Tensor) -> torch.dtype:
    """The dtype in which the node's result is accumulated."""
    result = math_dtype(ctx.val.dtype)
    refuse(result.is_floating_point != x.dtype.is_floating_point and is_float(x), "a sum of floats as integers")
    return result


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _total(ctx, x, all_or(dim, x.ndim), "prod")


def _total(ctx: Context, x: Tensor, dims: Sequence[int], kind: str) -> Tensor:
    """A sum or product; of bools, as which they were asked for, whether any or every one is true."""
    if ctx.val.dtype is torch.bool:
        return truth(ctx, x, dims, every=kind == "prod", val=ctx.val)
    return reduced(ctx, x, dims, kind, dtype=accumulator(ctx, x))


@lowers(aten.mean.default, aten.mean.dim)
def mean(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return mean_of(ctx, x, all_or(dims, x.ndim), ctx.val)


def mean_of(ctx: Context, x: Tensor, dims: Sequence[int], val: MetaTensor) -> Tensor:
    """Sum divided by count, in the dtype of computation."""
    math = math_dtype(val.dtype)
    refuse(not math.is_floating_point, "a mean of integers")
    count = count_of(x, dims)
    return reduced(
        ctx, x, dims, "sum", dtype=math, val=val, after=lambda ops, total: ops.truediv(total, size_as(ops, count, math))
    )


def size_as(ops: Recorder, size: Expr, dtype: torch.dtype) -> Value:
    """A size as a number."""
    known = getattr(size, "value", None)
    return ops.index_expr(size, dtype) if known is None else ops.constant(float(known), dtype)


# --- extrema and logic


def _extremum(kind: str) -> Rule:
    def rule(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
        return extremum(ctx, x, all_or(dims, x.ndim), kind, ctx.val)

    return rule


def extremum(ctx: Context, x: Tensor, dims: Sequence[int], kind: str, val: MetaTensor) -> Tensor:
    if x.dtype is torch.bool:
        return truth(ctx, x, dims, every=kind == "min", val=val)
    return reduced(ctx, x, dims, kind, dtype=math_dtype(x.dtype), val=val)


lowers(aten.amax.default, aten.max.default)(_extremum("max"))
lowers(aten.amin.default, aten.min.default)(_extremum("min"))


def _with_position(kind: str) -> Rule:
    def rule(ctx: Context, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        dims = all_or(dim, x.ndim)
        values, positions = ctx.val
        extreme = extremum(ctx, x, dims, kind, values)
        ordered = torch.int32 if x.dtype is torch.bool else math_dtype(x.dtype)
        where = reduced(ctx, x, dims, f"arg{kind}", dtype=ordered, val=positions)
        return extreme, where

    return rule


lowers(aten.max.dim)(_with_position("max"))
lowers(aten.min.dim)(_with_position("min"))


def _position(kind: str) -> Rule:
    def rule(ctx: Context, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        refuse(x.dtype is torch.bool, f"{kind} of bools")
        return reduced(ctx, x, all_or(dim, x.ndim), kind, dtype=math_dtype(x.dtype))

    return rule


lowers(aten.argmax.default)(_position("argmax"))
lowers(aten.argmin.default)(_position("argmin"))


@lowers(aten.aminmax.default)
def aminmax(ctx: Context, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = all_or(dim, x.ndim)
    low, high = ctx.val
    return extremum(ctx, x, dims, "min", low), extremum(ctx, x, dims, "max", high)


def truth(ctx: Context, x: Tensor, dims: Sequence[int], *, every: bool, val: MetaTensor) -> Tensor:
    """Whether any, or every, element is not zero."""

    def negated(ops: Recorder, value: Value, *index: Any) -> Value:
        return ops.logical_not(value)

    flip = negated if every else None
    return reduced(ctx, x, dims, "any", dtype=torch.bool, before=flip, after=flip, val=val)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return truth(ctx, x, _truth_dims(dims, x.ndim), every=False, val=ctx.val)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return truth(ctx, x, _truth_dims(dims, x.ndim), every=True, val=ctx.val)


def _truth_dims(dims: Any, ndim: int) -> list[int]:
    if isinstance(dims, (list, tuple)) and not dims:
        return []  # any and all over no dimensions reduce none
    return all_or(dims, ndim)


# --- moments


def _meta_like(x: Tensor, dims: Sequence[int], dtype: torch.dtype) -> MetaTensor:
    """Metadata of a reduction of `x` that keeps its dimensions."""
    return contiguous_meta([1 if dim in dims else extent for dim, extent in enumerate(x.size)], dtype)


def variance(
    ctx: Context, x: Tensor, dims: Sequence[int], correction: float, val: MetaTensor, *, root: bool, mean: Tensor
) -> Tensor:
    """Second moment around `mean` (which keeps the dimensions), in its dtype: the second of two passes."""
    math = mean.dtype
    count = count_of(x, dims)

    def before(ops: Recorder, value: Value, index: Index) -> Value:
        center = mean.load(ops, tuple([index[d] * 0 if d in dims else index[d] for d in range(x.ndim)]))
        away = ops.sub(value, ops.to_dtype(center, math))
        return ops.mul(away, away)

    def after(ops: Recorder, total: Value) -> Value:
        known = as_int(count)
        if known is None:
            divisor = ops.sub(size_as(ops, count, math), ops.constant(correction, math))
            divisor = ops.maximum(divisor, ops.constant(0.0, math))
        else:
            divisor = ops.constant(max(known - correction, 0.0), math)
        result = ops.truediv(total, divisor)
        return ops.sqrt(result) if root else result

    return reduced(ctx, x, dims, "sum", dtype=math, before=before, after=after, val=val, others=[mean])


def _dtype_of_moments(ctx: Context, x: Tensor) -> torch.dtype:
    """float64 on a CPU, as in eager's kernel: squares of large numbers do not overflow. In norms, theirs."""
    origin = None if ctx.node is None else ctx.node.meta.get("origin")
    exact = x.device.type == "cpu" and getattr(origin, "made_by", "") != "decompose"
    return torch.float64 if exact else math_dtype(x.dtype)


def _moments(root: bool, with_mean: bool) -> Rule:
    def rule(
        ctx: Context, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        refuse(not is_float(x), "moments of integers")
        chosen = all_or(dims, x.ndim)
        before_moments(ctx, x)
        math = _dtype_of_moments(ctx, x)
        center = mean_of(ctx, x, chosen, _meta_like(x, chosen, math))
        if center.ref is None:
            ctx.realise(center)
        delta = 1.0 if correction is None else float(correction)
        spread_val, mean_val = ctx.val if with_mean else (ctx.val, None)
        spread = variance(ctx, x, chosen, delta, spread_val, root=root, mean=center)
        if mean_val is None:
            return spread
        average = reshaped(ctx, center, ctx.sizes(mean_val.shape), ctx.sizes(mean_val.stride()))
        return spread, pointwise(ctx, lambda ops, a: a, [average], val=mean_val)

    return rule


def before_moments(ctx: Context, x: Tensor) -> None:
    """What is read twice is stored first, unless it is next to nothing to compute."""
    if x.ref is None and (x.cost >= 4 or len(x.reads) > 1):
        ctx.realise(x)


lowers(aten.var.correction)(_moments(False, False))
lowers(aten.std.correction)(_moments(True, False))
lowers(aten.var_mean.correction)(_moments(False, True))
lowers(aten.std_mean.correction)(_moments(True, True))


@lowers(aten.nansum.default)
def nansum(ctx: Context, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    def before(ops: Recorder, value: Value, index: Index) -> Value:
        return ops.where(ops.isnan(value), ops.constant(0.0, value.dtype), value)

    if not is_float(x):
        return _total(ctx, x, all_or(dims, x.ndim), "sum")
    return reduced(ctx, x, all_or(dims, x.ndim), "sum", dtype=accumulator(ctx, x), before=before)


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(ctx: Context, x: Tensor, dims: Any = None) -> Tensor:
    dtype = x.dtype if x.dtype is torch.bool else math_dtype(x.dtype)

    def before(ops: Recorder, value: Value, index: Index) -> Value:
        return ops.to_dtype(ops.to_dtype(value, torch.bool), torch.int64)

    return reduced(ctx, x, all_or(dims, x.ndim), "sum", dtype=dtype, before=before)


@lowers(aten.norm.ScalarOpt_dim)
def norm(ctx: Context, x: Tensor, order: Any, dims: Any, keepdim: bool = False) -> Tensor:
    return vector_norm(ctx, x, 2 if order is None else order, dims, keepdim)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    ctx: Context, x: Tensor, order: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    refuse(not is_float(x), "a norm of integers")
    math = math_dtype(ctx.val.dtype)
    chosen = all_or(dims, x.ndim)
    order = float(order) if as_int(count_of(x, chosen)) != 1 or not order else float("inf")  # of one: its size

    def before(ops: Recorder, value: Value, index: Index) -> Value:
        if order == 2:
            return ops.mul(value, value)
        size = ops.abs(value)
        if order == 0:
            return ops.to_dtype(ops.ne(size, ops.constant(0.0, math)), math)
        return size if abs(order) == float("inf") else float_power(ops, size, order, math)

    def after(ops: Recorder, total: Value) -> Value:
        if order == 2:
            return ops.sqrt(total)
        return total if order in (0, 1, float("inf"), float("-inf")) else ops.pow(total, ops.constant(1 / order, math))

    kind = {float("inf"): "max", float("-inf"): "min"}.get(order, "sum")
    return reduced(ctx, x, chosen, kind, dtype=math, before=before, after=after)


# --- softmax


@lowers(aten._safe_softmax.default)
def safe_softmax(ctx: Context, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Softmax whose rows of nothing but -inf give zeros."""
    refuse(not is_float(x) or ctx.val.dtype is not x.dtype, "softmax of integers or to another dtype")
    math = math_dtype(x.dtype)
    dims = all_or(dim, x.ndim)
    before_moments(ctx, x)
    row, whole = _meta_like(x, dims, math), like_meta(ctx.val, math)
    top = reduced(ctx, x, dims, "max", dtype=math, val=row)
    ctx.realise(top)

    def power(ops: Recorder, a: Value, peak: Value) -> Value:
        low = ops.constant(float("-inf"), math)
        return ops.where(ops.eq(peak, low), ops.constant(0.0, math), ops.exp(ops.sub(a, peak)))

    powers = pointwise(ctx, power, [x, top], common=math, cost=14, val=whole)
    ctx.realise(powers)
    total = reduced(ctx, powers, dims, "sum", dtype=math, val=row)

    def share(ops: Recorder, a: Value, all_: Value) -> Value:
        zero = ops.constant(0.0, math)
        return ops.where(ops.eq(all_, zero), zero, ops.truediv(a, all_))

    return pointwise(ctx, share, [powers, total], common=math, cost=6)


# --- scans: on a CPU one by one, on a GPU where a program holds a row

# 16-bit floats are added up in float32, where eager rounds after every step; bools have sums only in int64.
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_DTYPES = (torch.float32, torch.float64, *REDUCED_FLOATS, *_INTEGERS)


def _scan(kind: str) -> Rule:
    def rule(ctx: Context, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        target = ctx.targets(ctx.device)
        refuse(target is None or not target.scan_length, "no lowering")
        assert target is not None  # checked above
        refuse(not x.size or x.size[wrap(dim, len(x.size))] == 1, "a scan of single elements")
        wide = ctx.val.dtype
        refuse(wide not in _DTYPES, f"a scan of {wide}")
        if target.scan_length == ANY_LENGTH:
            return ctx.scan(
                x, wrap(dim, len(x.size)), kind, torch.float64 if wide is torch.float32 else math_dtype(wide)
            )
        refuse(kind == "logaddexp", "no lowering")
        length = as_int(x.size[wrap(dim, len(x.size))])
        refuse(length is None or length > target.scan_length, "rows that are too long, or of any length")
        return ctx.scan(x, wrap(dim, len(x.size)), kind, math_dtype(wide))

    return rule


lowers(aten.cumsum.default)(_scan("sum"))
lowers(aten.cumprod.default)(_scan("prod"))
lowers(aten.logcumsumexp.default)(_scan("logaddexp"))


def _running(kind: str) -> Rule:
    """The extremum up to each element, and the last place that had it; or the last that was no number."""

    def rule(ctx: Context, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        target = ctx.targets(ctx.device)
        refuse(target is None or target.scan_length != ANY_LENGTH, "no lowering")
        refuse(x.dtype not in _DTYPES, f"a scan of {x.dtype}")
        math, (values, places) = math_dtype(x.dtype), ctx.val
        if not x.size or x.size[wrap(dim, len(x.size))] == 1:
            none = ctx.lazy(lambda ops, index: ops.constant(0, torch.int64), [], val=places)
            return pointwise(ctx, lambda ops, a: a, [x], val=values), none

        length = as_int(x.size[wrap(dim, len(x.size))])
        index = torch.int32 if length is not None and length < 1 << 31 else torch.int64

        def body(ops: Recorder, value: Value, place: Expr) -> list[Value]:
            value = ops.to_dtype(value, math)
            extreme = ops.scan(kind, value)
            new = ops.eq(value, extreme)
            if math.is_floating_point:
                new = ops.logical_or(new, ops.isnan(value))
            here = ops.where(new, ops.index_expr(place, index), ops.constant(0, index))
            return [extreme, ops.scan("max", here)]

        return tuple(ctx.scans(x, wrap(dim, len(x.size)), body, [values, places]))

    return rule


lowers(aten.cummax.default)(_running("max"))
lowers(aten.cummin.default)(_running("min"))
