"""Operations on pairs of real and imaginary parts: nodes, or numbers where all elements are one."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

PARTS: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtype of the parts of complex numbers that are computed as pairs."""

Part: TypeAlias = "fx.Node | float"


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex tensor as two real ones."""

    re: Part
    im: Part


def plus(b: Builder, x: Part, y: Part) -> Part:
    """x + y"""
    if not isinstance(x, fx.Node):
        x, y = y, x
    return b(aten.add.Tensor, x, y) if isinstance(x, fx.Node) else x + y


def minus(b: Builder, x: Part, y: Part) -> Part:
    """x - y"""
    if isinstance(x, fx.Node):
        return b(aten.sub.Tensor, x, y)
    return b(aten.rsub.Scalar, y, x) if isinstance(y, fx.Node) else x - y


def times(b: Builder, x: Part, y: Part) -> Part:
    """x y"""
    if not isinstance(x, fx.Node):
        x, y = y, x
    return b(aten.mul.Tensor, x, y) if isinstance(x, fx.Node) else x * y


def negative(b: Builder, x: Part) -> Part:
    """-x"""
    return b(aten.neg.default, x) if isinstance(x, fx.Node) else -x


def whole(b: Builder, x: Part, like: fx.Node) -> fx.Node:
    """`x` as a node: a number is a tensor of no dimensions, of the dtype and on the device of `like`."""
    if isinstance(x, fx.Node):
        return x
    node: fx.Node = b(aten.full.default, [], x, dtype=like.meta["val"].dtype, device=like.meta["device"])
    return node


def product(b: Builder, x: Pair, y: Pair) -> Pair:
    """(a + bi)(c + di) = ac - bd + (ad + bc)i"""
    re = minus(b, times(b, x.re, y.re), times(b, x.im, y.im))
    return Pair(re, plus(b, times(b, x.re, y.im), times(b, x.im, y.re)))


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """x / y by the ratio r of y's smaller part to its larger one, as eager: (a + b r) / (c + d r) where |c| >= |d|

    Zero divides the parts one by one.
    """
    like = next(part for part in (x.re, x.im, y.re, y.im) if isinstance(part, fx.Node))
    dividend, c, d = x, whole(b, y.re, like), whole(b, y.im, like)
    x = Pair(whole(b, x.re, like), whole(b, x.im, like))
    first = b(aten.ge.Tensor, b(aten.abs.default, c), b(aten.abs.default, d))
    larger, smaller = b(aten.where.self, first, c, d), b(aten.where.self, first, d, c)
    ratio = b(aten.div.Tensor, smaller, larger)
    scale = b(aten.reciprocal.default, plus(b, larger, times(b, smaller, ratio)))
    one, other = b(aten.where.self, first, x.re, x.im), b(aten.where.self, first, x.im, x.re)
    across = times(b, one, ratio)
    re = times(b, plus(b, one, times(b, other, ratio)), scale)
    turned = b(aten.where.self, first, minus(b, other, across), minus(b, across, other))
    im = times(b, turned, scale)
    zero = b(aten.logical_and.default, b(aten.eq.Scalar, c, 0.0), b(aten.eq.Scalar, d, 0.0))
    nothing = b(aten.abs.default, c)
    apart = [b(aten.div.Tensor, whole(b, part, like), nothing) for part in (dividend.re, dividend.im)]
    return Pair(b(aten.where.self, zero, apart[0], re), b(aten.where.self, zero, apart[1], im))


def absolute(b: Builder, x: Pair) -> fx.Node:
    """sqrt(re² + im²): of floats in double precision, of doubles by the ratio of their parts: squares stay in range"""
    re, im = parts_of(x)
    if re.meta["val"].dtype is torch.float32:
        length: fx.Node = b(aten._to_copy.default, b(aten.sqrt.default, squares(b, re, im)), dtype=torch.float32)
    else:
        one, other = b(aten.abs.default, re), b(aten.abs.default, im)
        larger, smaller = b(aten.maximum.default, one, other), b(aten.minimum.default, one, other)
        ratio = b(aten.div.Tensor, smaller, larger)
        root = b(aten.sqrt.default, b(aten.add.Tensor, b(aten.mul.Tensor, ratio, ratio), 1.0))
        zero = b(aten.eq.Scalar, larger, 0.0)
        length = b(aten.where.self, zero, larger, b(aten.mul.Tensor, larger, root))
    return or_infinity(b, x, length)


def logarithm(b: Builder, x: Pair) -> Pair:
    """log |x| + i angle(x), of floats: from |x|² in double precision"""
    re, im = parts_of(x)
    half = b(aten.mul.Tensor, b(aten.log.default, squares(b, re, im)), 0.5)
    length = b(aten._to_copy.default, half, dtype=re.meta["val"].dtype)
    return Pair(or_infinity(b, x, length), b(aten.atan2.default, im, re))


def exponential(b: Builder, x: Pair) -> Pair:
    """e^re (cos im + i sin im), of floats: e^re in double precision, for the product may be in range where it is not"""
    re, im = parts_of(x)
    dtype = re.meta["val"].dtype
    length = b(aten.exp.default, b(aten._to_copy.default, re, dtype=torch.float64))
    parts = []
    for function in (aten.cos.default, aten.sin.default):
        turned = b(aten.mul.Tensor, length, b(aten._to_copy.default, b(function, im), dtype=torch.float64))
        parts.append(b(aten._to_copy.default, turned, dtype=dtype))
    finite = b(aten.isfinite.default, im)
    endless = b(aten.logical_and.default, b(aten.isinf.default, re), b(aten.logical_not.default, finite))
    cosine = b(aten.where.self, endless, b(aten._to_copy.default, length, dtype=dtype), parts[0])
    nothing = b(aten.logical_and.default, endless, b(aten.lt.Scalar, re, 0.0))
    sine = b(aten.where.self, nothing, b(aten.copysign.Tensor, whole(b, 0.0, re), im), parts[1])
    return Pair(cosine, b(aten.where.self, b(aten.eq.Scalar, im, 0.0), im, sine))


def parts_of(x: Pair) -> tuple[fx.Node, fx.Node]:
    """The parts of a tensor, which are nodes."""
    assert isinstance(x.re, fx.Node) and isinstance(x.im, fx.Node)
    return x.re, x.im


def squares(b: Builder, re: fx.Node, im: fx.Node) -> fx.Node:
    """re² + im² of floats as doubles, which hold it."""
    squares = []
    for part in (re, im):
        wide = b(aten._to_copy.default, part, dtype=torch.float64)
        squares.append(b(aten.mul.Tensor, wide, wide))
    total: fx.Node = b(aten.add.Tensor, *squares)
    return total


def or_infinity(b: Builder, x: Pair, length: fx.Node) -> fx.Node:
    """`length`, and infinity where a part is infinite, even if the other is not a number."""
    re, im = parts_of(x)
    endless = b(aten.logical_or.default, b(aten.isinf.default, re), b(aten.isinf.default, im))
    result: fx.Node = b(aten.where.self, endless, whole(b, float("inf"), length), length)
    return result
