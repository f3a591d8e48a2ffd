"""Softmax and the normalisations."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, cast, decomposes, is_float, val, widen

SCATTERED_GROUPS = 1 << 14  # elements from which on eager's kernel norms groups of channels that lie last


@decomposes(aten._softmax.default)
def _softmax(b: Builder, x: fx.Node, dim: int, half_to_float: bool) -> Any:
    """exp(x - max x) / sum exp(x - max x)"""
    if val(x).numel() == 0 or not is_float(x):
        return NotImplemented
    wide = widen(b, x)
    top = b(aten.amax.default, wide, [dim], True)
    e = b(aten.exp.default, b(aten.sub.Tensor, wide, top))
    quotient = b(aten.div.Tensor, e, b(aten.sum.dim_IntList, e, [dim], True))
    return quotient if half_to_float else cast(b, quotient, val(x).dtype)


@decomposes(aten._log_softmax.default)
def _log_softmax(b: Builder, x: fx.Node, dim: int, half_to_float: bool) -> Any:
    """(x - max x) - log sum exp(x - max x)"""
    if val(x).numel() == 0 or not is_float(x):
        return NotImplemented
    wide = widen(b, x)
    shifted = b(aten.sub.Tensor, wide, b(aten.amax.default, wide, [dim], True))
    total = b(aten.sum.dim_IntList, b(aten.exp.default, shifted), [dim], True)
    logs = b(aten.sub.Tensor, shifted, b(aten.log.default, total))
    return logs if half_to_float else cast(b, logs, val(x).dtype)


@decomposes(aten.logsumexp.default)
def _logsumexp(b: Builder, x: fx.Node, dim: list[int], keepdim: bool = False) -> Any:
    """log sum exp(x - m) + m, with m = max x where that is finite, else 0"""
    if val(x).numel() == 0 or not is_float(x) or not dim:
        return NotImplemented
    wide = widen(b, x)
    top = b(aten.amax.default, wide, dim, True)
    infinite = b(aten.eq.Scalar, b(aten.abs.default, top), float("inf"))
    top = b(aten.masked_fill.Scalar, top, infinite, 0)
    total = b(aten.sum.dim_IntList, b(aten.exp.default, b(aten.sub.Tensor, wide, top)), dim, True)
    out = b(aten.add.Tensor, b(aten.log.default, total), top)
    if not keepdim:
        out = b(aten.squeeze.dims, out, sorted(d % max(val(x).dim(), 1) for d in dim)) if val(x).dim() else out
    return cast(b, out, val(x).dtype)


@decomposes(aten.native_layer_norm.default)
def _layer_norm(b: Builder, x: fx.Node, shape: list[int], weight: Any, bias: Any, eps: float) -> Any:
    """(x - mean) * rsqrt(var + eps) * weight + bias over the last dimensions; also the mean and the rsqrt"""
    if val(x).numel() == 0:
        return NotImplemented
    dims = list(range(val(x).dim() - len(shape), val(x).dim()))
    wide = widen(b, x)
    var, mean = b(aten.var_mean.correction, wide, dims, correction=0, keepdim=True)
    scale = b(aten.rsqrt.default, b(aten.add.Tensor, var, eps))
    normed = b(aten.mul.Tensor, b(aten.sub.Tensor, wide, mean), scale)
    normed = _affine(b, normed, weight, bias)
    return cast(b, normed, val(x).dtype), mean, scale


def _affine(b: Builder, normed: fx.Node, weight: Any, bias: Any, size: list[int] | None = None) -> fx.Node:
    """normed * weight + bias, both widened and viewed as `size`"""
    for op, operand in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if operand is not None:
            operand = widen(b, operand)
            normed = b(op, normed, b(aten.view.default, operand, size) if size is not None else operand)
    return normed


@decomposes(aten._fused_rms_norm.default)
def _rms_norm(b: Builder, x: fx.Node, shape: list[int], weight: Any, eps: float | None) -> Any:
    """x * rsqrt(mean(x * x) + eps) * weight over the last dimensions; also the rsqrt"""
    if val(x).numel() == 0 or not is_float(x):
        return NotImplemented
    dims = list(range(val(x).dim() - len(shape), val(x).dim()))
    wide = widen(b, x)
    epsilon = torch.finfo(val(wide).dtype).eps if eps is None else eps
    square = b(aten.mean.dim, b(aten.mul.Tensor, wide, wide), dims, True)
    scale = b(aten.rsqrt.default, b(aten.add.Tensor, square, epsilon))
    normed = _affine(b, b(aten.mul.Tensor, wide, scale), weight, None)
    return cast(b, normed, val(x).dtype), scale


@decomposes(aten.native_group_norm.default)
def _group_norm(
    b: Builder, x: fx.Node, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, eps: float
) -> Any:
    """Normalises over each group of channels and all positions; also the mean and the rsqrt, (n, groups)"""
    if val(x).numel() == 0 or (val(x).numel() > SCATTERED_GROUPS and not val(x).is_contiguous()):
        return NotImplemented  # in other layouts groups are scattered: up to 18 times slower than eager's kernel
    size = list(val(x).shape)
    rest = size[2:]
    # Splitting the channels alone is a view in every memory format.
    parts = b(aten.view.default, widen(b, x), [n, groups, c // groups, *rest])
    dims = list(range(2, 3 + len(rest)))
    var, mean = b(aten.var_mean.correction, parts, dims, correction=0, keepdim=True)
    scale = b(aten.rsqrt.default, b(aten.add.Tensor, var, eps))
    normed = b(aten.mul.Tensor, b(aten.sub.Tensor, parts, mean), scale)
    normed = _affine(b, normed, weight, bias, [1, groups, c // groups, *([1] * len(rest))])
    flat = [n, groups]
    normed = b(aten.view.default, normed, size)
    return (
        cast(b, normed, val(x).dtype),
        b(aten.view.default, mean, flat),
        b(aten.view.default, scale, flat),
    )


@decomposes(aten.native_group_norm_backward.default)
def _group_norm_backward(
    b: Builder,
    grad: fx.Node,
    x: fx.Node,
    mean: fx.Node,
    scale: fx.Node,
    weight: Any,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    wanted: list[bool],
) -> Any:
    """With h = (x - mean) * scale and s = grad * weight: scale * (s - mean s - h * mean(s * h)) over each group; the
    sums of grad * h and of grad over all but the channels"""
    if val(x).numel() == 0 or not is_float(x) or not (val(x).is_contiguous() and val(grad).is_contiguous()):
        return NotImplemented  # in other layouts the groups are scattered, and eager's kernel is faster
    size, rest = list(val(x).shape), list(val(x).shape[2:])
    parts, group = [n, groups, c // groups, *rest], [n, groups, *([1] * (1 + len(rest)))]
    dims = list(range(2, 3 + len(rest)))
    wide = b(aten.view.default, widen(b, grad), parts)
    mean, scale = (b(aten.view.default, widen(b, each), group) for each in (mean, scale))
    hat = b(aten.mul.Tensor, b(aten.sub.Tensor, b(aten.view.default, widen(b, x), parts), mean), scale)
    channels = [0, *range(3, 3 + len(rest))]
    gradients: list[Any] = [None, None, None]
    if wanted[0]:
        slope = wide if weight is None else _affine(b, wide, weight, None, [1, *parts[1:3], *([1] * len(rest))])
        flat = b(aten.mean.dim, slope, dims, True)
        tilt = b(aten.mul.Tensor, hat, b(aten.mean.dim, b(aten.mul.Tensor, slope, hat), dims, True))
        moved = b(aten.mul.Tensor, b(aten.sub.Tensor, b(aten.sub.Tensor, slope, flat), tilt), scale)
        gradients[0] = cast(b, b(aten.view.default, moved, size), val(x).dtype)
    for position, summed in ((1, b(aten.mul.Tensor, wide, hat)), (2, wide)):
        if wanted[position]:
            total = b(aten.view.default, b(aten.sum.dim_IntList, summed, channels), [c])
            gradients[position] = cast(b, total, val(x).dtype)
    return tuple(gradients)


@decomposes(aten._weight_norm_interface.default)
def _weight_norm(b: Builder, v: fx.Node, g: fx.Node, dim: int = 0) -> Any:
    """v g / |v|, with a norm for each index of the first or last dimension; also the norms"""
    if not _may_be_normed(v, dim):
        return NotImplemented
    norms = b(aten.sqrt.default, b(aten.sum.dim_IntList, b(aten.mul.Tensor, v, v), _all_but(v, dim), True))
    return b(aten.mul.Tensor, v, b(aten.div.Tensor, g, norms)), norms


@decomposes(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(b: Builder, grad: fx.Node, v: fx.Node, g: fx.Node, norms: fx.Node, dim: int) -> Any:
    """(g / |v|) (grad - v s / |v|²) and s / |v|, where s adds up grad v"""
    if not _may_be_normed(v, dim):
        return NotImplemented
    tilt = b(aten.sum.dim_IntList, b(aten.mul.Tensor, grad, v), _all_but(v, dim), True)
    along = b(aten.mul.Tensor, v, b(aten.div.Tensor, tilt, b(aten.mul.Tensor, norms, norms)))
    across = b(aten.mul.Tensor, b(aten.div.Tensor, g, norms), b(aten.sub.Tensor, grad, along))
    return across, b(aten.div.Tensor, tilt, norms)


def _may_be_normed(v: fx.Node, dim: int) -> bool:
    like = val(v)
    return like.dtype in (torch.float32, torch.float64) and like.numel() > 0 and dim in (0, like.dim() - 1)


def _all_but(v: fx.Node, dim: int) -> list[int]:
    return [d for d in range(val(v).dim()) if d != dim]
