"""Losses and the activations that are made of others."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, cast, decomposes, device, full, is_float, val, widen

MEAN, SUM = 1, 2  # at::Reduction


def _reduced(b: Builder, loss: fx.Node, reduction: int) -> fx.Node:
    if reduction == MEAN:
        return b(aten.mean.default, loss)
    return b(aten.sum.default, loss) if reduction == SUM else loss


def _difference(b: Builder, x: fx.Node, target: fx.Node) -> fx.Node:
    return b(aten.sub.Tensor, widen(b, x), widen(b, target))


def _plain(*nodes: fx.Node) -> bool:
    return all(is_float(node) and val(node).numel() > 0 for node in nodes)


@decomposes(aten.mse_loss.default)
def _mse_loss(b: Builder, x: fx.Node, target: fx.Node, reduction: int = MEAN) -> Any:
    if not _plain(x, target):
        return NotImplemented
    d = _difference(b, x, target)
    return _reduced(b, b(aten.mul.Tensor, d, d), reduction)


@decomposes(aten.smooth_l1_loss.default)
def _smooth_l1_loss(b: Builder, x: fx.Node, target: fx.Node, reduction: int = MEAN, beta: float = 1.0) -> Any:
    """d² / 2 beta where |d| < beta, else |d| - beta / 2"""
    if not _plain(x, target):
        return NotImplemented
    d = b(aten.abs.default, _difference(b, x, target))
    if beta == 0:
        return _reduced(b, d, reduction)
    square = b(aten.mul.Tensor, b(aten.mul.Tensor, d, d), 0.5)
    near = b(aten.div.Tensor, square, beta)
    far = b(aten.sub.Tensor, d, 0.5 * beta)
    return _reduced(b, b(aten.where.self, b(aten.lt.Scalar, d, beta), near, far), reduction)


@decomposes(aten.huber_loss.default)
def _huber_loss(b: Builder, x: fx.Node, target: fx.Node, reduction: int = MEAN, delta: float = 1.0) -> Any:
    """d² / 2 where |d| < delta, else delta (|d| - delta / 2)"""
    if not _plain(x, target):
        return NotImplemented
    d = b(aten.abs.default, _difference(b, x, target))
    near = b(aten.mul.Tensor, b(aten.mul.Tensor, d, d), 0.5)
    far = b(aten.mul.Tensor, b(aten.sub.Tensor, d, 0.5 * delta), delta)
    return _reduced(b, b(aten.where.self, b(aten.lt.Scalar, d, delta), near, far), reduction)


@decomposes(aten.soft_margin_loss.default)
def _soft_margin_loss(b: Builder, x: fx.Node, target: fx.Node, reduction: int = MEAN) -> Any:
    """log(1 + exp(-target x))"""
    if not _plain(x, target):
        return NotImplemented
    away = b(aten.mul.Tensor, b(aten.neg.default, widen(b, x)), widen(b, target))
    return _reduced(b, b(aten.log1p.default, b(aten.exp.default, away)), reduction)


@decomposes(aten.binary_cross_entropy.default)
def _binary_cross_entropy(b: Builder, x: fx.Node, target: fx.Node, weight: Any = None, reduction: int = MEAN) -> Any:
    """-(y log x + (1 - y) log(1 - x)), where no logarithm is below -100"""
    if not _plain(x, target) or any(val(x).dtype is not val(each).dtype for each in (target, weight) if each):
        return NotImplemented
    for name, checked in (("input", x), ("target", target))[: 1 + _targets_are_checked()]:
        inside = b(aten.logical_and.default, b(aten.ge.Scalar, checked, 0.0), b(aten.le.Scalar, checked, 1.0))
        message = f"all elements of {name} should be between 0 and 1"
        b.effect(aten._assert_async.msg, b(aten.all.default, inside), message)
    p, y = widen(b, x), widen(b, target)
    one = b(aten.clamp_min.default, b(aten.log.default, p), -100.0)
    other = b(aten.clamp_min.default, b(aten.log1p.default, b(aten.neg.default, p)), -100.0)
    loss = b(aten.sub.Tensor, b(aten.mul.Tensor, b(aten.sub.Tensor, y, 1.0), other), b(aten.mul.Tensor, y, one))
    if weight is not None:
        loss = b(aten.mul.Tensor, loss, widen(b, weight))
    return _reduced(b, cast(b, loss, val(x).dtype) if reduction not in (MEAN, SUM) else loss, reduction)


@functools.cache
def _targets_are_checked() -> bool:
    """Not by older versions of torch."""
    try:
        aten.binary_cross_entropy(torch.tensor([0.5]), torch.tensor([2.0]))
    except RuntimeError:
        return True
    return False


@decomposes(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(b: Builder, x: fx.Node, target: fx.Node, weight: Any, reduction: int, ignore_index: int) -> Any:
    """-x[target] * weight[target], 0 where the target is ignored; also the total weight"""
    if not _plain(x) or val(target).dim() == 0 or val(x).dim() not in (2, 4):
        return NotImplemented
    ignored = b(aten.eq.Scalar, target, ignore_index)
    safe = b(aten.masked_fill.Scalar, target, ignored, 0)
    wide = widen(b, x)
    picked = b(aten.squeeze.dim, b(aten.gather.default, wide, 1, b(aten.unsqueeze.default, safe, 1)), 1)
    loss = b(aten.neg.default, picked)
    factor = b(aten.index.Tensor, widen(b, weight), [safe]) if weight is not None else None
    if factor is not None:
        loss = b(aten.mul.Tensor, loss, factor)
    loss = b(aten.masked_fill.Scalar, loss, ignored, 0)
    dtype = val(x).dtype
    if reduction not in (MEAN, SUM):
        return cast(b, loss, dtype), full(b, [], 0, x)
    if factor is not None:
        total = b(aten.sum.default, b(aten.masked_fill.Scalar, factor, ignored, 0))
    else:
        total = b(
            aten.sum.default, b(aten._to_copy.default, b(aten.logical_not.default, ignored), dtype=val(wide).dtype)
        )
    loss_sum = b(aten.sum.default, loss)
    if reduction == MEAN:
        loss_sum = b(aten.div.Tensor, loss_sum, total)
    return cast(b, loss_sum, dtype), cast(b, total, dtype)


@decomposes(aten.glu.default)
def _glu(b: Builder, x: fx.Node, dim: int = -1) -> Any:
    """first half * sigmoid(second half)"""
    if not is_float(x):
        return NotImplemented
    first, second = _halves(b, x, dim)
    return cast(b, b(aten.mul.Tensor, first, b(aten.sigmoid.default, second)), val(x).dtype)


@decomposes(aten.glu_backward.default)
def _glu_backward(b: Builder, grad: fx.Node, x: fx.Node, dim: int) -> Any:
    """The gate for the first half; what it gates, by the slope of the gate, for the second."""
    if not is_float(x):
        return NotImplemented
    first, second = _halves(b, x, dim)
    gate, grad = b(aten.sigmoid.default, second), widen(b, grad)
    slope = b(aten.mul.Tensor, b(aten.rsub.Scalar, gate, 1), gate)
    parts = [b(aten.mul.Tensor, gate, grad), b(aten.mul.Tensor, b(aten.mul.Tensor, slope, first), grad)]
    return b(aten.cat.default, [cast(b, part, val(x).dtype) for part in parts], dim)


def _halves(b: Builder, x: fx.Node, dim: int) -> tuple[fx.Node, fx.Node]:
    """The two halves of a tensor, widened."""
    half = val(x).shape[dim] // 2
    return widen(b, b(aten.slice.Tensor, x, dim, 0, half)), widen(b, b(aten.slice.Tensor, x, dim, half, 2 * half))


@decomposes(aten.log_sigmoid_forward.default)
def _log_sigmoid(b: Builder, x: fx.Node) -> Any:
    """min(x, 0) - log1p(exp(-|x|)); also what eager keeps for its backward"""
    if not is_float(x):
        return NotImplemented
    wide = widen(b, x)
    e = b(aten.exp.default, b(aten.neg.default, b(aten.abs.default, wide)))
    low = b(aten.minimum.default, wide, full(b, [], 0, wide))
    logs = b(aten.sub.Tensor, low, b(aten.log1p.default, e))
    return cast(b, logs, val(x).dtype), cast(b, e, val(x).dtype)


@decomposes(aten._prelu_kernel.default)
def _prelu(b: Builder, x: fx.Node, weight: fx.Node) -> Any:
    """x where x > 0, else weight x"""
    return b(aten.where.self, b(aten.gt.Scalar, x, 0), x, b(aten.mul.Tensor, weight, x))


@decomposes(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def _xlogy(b: Builder, x: Any, y: Any) -> Any:
    return _times_log(b, x, y, aten.log.default)


@decomposes(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def _xlog1py(b: Builder, x: Any, y: Any) -> Any:
    return _times_log(b, x, y, aten.log1p.default)


def _times_log(b: Builder, x: Any, y: Any, log: OpOverload) -> Any:
    """x log(y), 0 where x is, NaN where y is"""
    given = [each for each in (x, y) if isinstance(each, fx.Node)]
    if not all(map(is_float, given)) or any(isinstance(each, (complex, bool)) for each in (x, y)):
        return NotImplemented
    dtype = torch.result_type(*(val(each) if isinstance(each, fx.Node) else each for each in (x, y)))
    math = torch.float32 if dtype.itemsize == 2 else dtype
    whole = (e if isinstance(e, fx.Node) else full(b, [], e, given[0], dtype) for e in (x, y))
    left, right = (cast(b, each, math) for each in whole)
    product = b(aten.mul.Tensor, left, b(log, right))
    product = b(aten.where.self, b(aten.eq.Scalar, left, 0), full(b, [], 0, left), product)
    return cast(b, b(aten.where.self, b(aten.isnan.default, right), right, product), dtype)


def _margins(b: Builder, x: fx.Node, target: fx.Node, margin: float) -> Any:
    """Of rows: the class at hand, whether each is it, and how far each of the others is above the margin below it"""
    if val(x).dim() != 2 or val(target).shape != val(x).shape[:1] or val(x).dtype.itemsize < 4:
        return NotImplemented
    rows, classes = val(x).shape
    if not isinstance(rows, int) or not isinstance(classes, int) or not rows * classes:
        return NotImplemented
    column = b(aten.unsqueeze.default, target, 1)
    own = b(aten.eq.Tensor, b(aten.arange.default, classes, device=device(x)), column)
    least = b(aten.rsub.Scalar, b(aten.gather.default, x, 1, column), margin)
    above = b(aten.add.Tensor, least, x)
    counts = b(aten.logical_and.default, b(aten.gt.Scalar, above, 0), b(aten.logical_not.default, own))
    return own, counts, above


def _weighed(b: Builder, x: fx.Node, target: fx.Node, weight: fx.Node | None) -> fx.Node:
    if weight is None:
        return x
    factor = b(aten.unsqueeze.default, b(aten.index_select.default, weight, 0, target), 1)
    node: fx.Node = b(aten.mul.Tensor, x, factor)
    return node


@decomposes(aten.multi_margin_loss.default)
def _multi_margin_loss(
    b: Builder, x: fx.Node, target: fx.Node, p: int = 1, margin: float = 1, weight: Any = None, reduction: int = MEAN
) -> Any:
    """The mean over classes of max(0, margin - x[target] + x)^p, of the target's own 0"""
    parts = _margins(b, x, target, margin)
    if parts is NotImplemented:
        return NotImplemented
    _, counts, above = parts
    power = b(aten.mul.Tensor, above, above) if p == 2 else above
    loss = _weighed(b, b(aten.where.self, counts, power, full(b, [], 0, x)), target, weight)
    return _reduced(b, b(aten.mean.dim, loss, [1]), reduction)


@decomposes(aten.multi_margin_loss_backward.default)
def _multi_margin_loss_backward(
    b: Builder, grad: fx.Node, x: fx.Node, target: fx.Node, p: int, margin: float, weight: Any, reduction: int = MEAN
) -> Any:
    """p max(0, margin - x[target] + x)^(p - 1); of the target's own, minus the sum of the others'"""
    parts = _margins(b, x, target, margin)
    if parts is NotImplemented:
        return NotImplemented
    own, counts, above = parts
    rows, classes = val(x).shape
    share = 1 / (rows * classes if reduction == MEAN else classes)
    slope = b(aten.mul.Tensor, above, 2 * share) if p == 2 else full(b, [], share, x)
    slopes = _weighed(b, b(aten.where.self, counts, slope, full(b, [], 0, x)), target, weight)
    total = b(aten.neg.default, b(aten.sum.dim_IntList, slopes, [1], True))
    whole = b(aten.unsqueeze.default, grad, 1) if val(grad).dim() else grad
    return b(aten.mul.Tensor, b(aten.where.self, own, total, slopes), whole)
