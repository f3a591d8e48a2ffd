"""Functions of complex numbers of two floats: formulas over their parts, with the C library's values at the ends.

Exponentials and squares are computed in double precision: a product may be in range where they are not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.complex_numbers.arithmetic import (
    Pair,
    Part,
    aten,
    logarithm,
    or_infinity,
    parts_of,
    quotient,
    squares,
    whole,
)


def _wide(b: Builder, x: fx.Node) -> fx.Node:
    node: fx.Node = b(aten._to_copy.default, x, dtype=torch.float64)
    return node


def _narrow(b: Builder, x: fx.Node) -> fx.Node:
    node: fx.Node = b(aten._to_copy.default, x, dtype=torch.float32)
    return node


def _either(b: Builder, *conditions: fx.Node) -> fx.Node:
    first, *rest = conditions
    for one in rest:
        first = b(aten.logical_or.default, first, one)
    return first


def _hyperbolic(b: Builder, x: fx.Node) -> tuple[fx.Node, fx.Node]:
    """cosh and sinh of floats as doubles: (e + 1/e) / 2, (e - 1/e) / 2, which of small numbers cancels"""
    power = b(aten.exp.default, _wide(b, x))
    inverse = b(aten.reciprocal.default, power)
    even = b(aten.mul.Tensor, b(aten.add.Tensor, power, inverse), 0.5)
    odd = b(aten.mul.Tensor, b(aten.sub.Tensor, power, inverse), 0.5)
    small = b(aten.lt.Scalar, b(aten.abs.default, x), 1.0)
    return even, b(aten.where.self, small, _wide(b, b(aten.sinh.default, x)), odd)


def _turns(b: Builder, im: fx.Node, of_cosine: fx.Node, of_sine: fx.Node) -> tuple[fx.Node, fx.Node]:
    """A double times cos b, and another one times sin b, as floats"""
    cosine, sine = _wide(b, b(aten.cos.default, im)), _wide(b, b(aten.sin.default, im))
    return _narrow(b, b(aten.mul.Tensor, of_cosine, cosine)), _narrow(b, b(aten.mul.Tensor, of_sine, sine))


def _endless(b: Builder, re: fx.Node, im: fx.Node) -> fx.Node:
    """Whether the real part is infinite, and the other one no finite number"""
    infinite, finite = b(aten.isinf.default, re), b(aten.isfinite.default, im)
    node: fx.Node = b(aten.logical_and.default, infinite, b(aten.logical_not.default, finite))
    return node


def sinh(b: Builder, x: Pair) -> Pair:
    """sinh a cos b + i cosh a sin b"""
    re, im = parts_of(x)
    even, odd = _hyperbolic(b, re)
    real, other = _turns(b, im, odd, even)
    kept = _either(b, _endless(b, re, im), b(aten.eq.Scalar, re, 0.0))
    return Pair(b(aten.where.self, kept, re, real), b(aten.where.self, b(aten.eq.Scalar, im, 0.0), im, other))


def cosh(b: Builder, x: Pair) -> Pair:
    """cosh a cos b + i sinh a sin b"""
    re, im = parts_of(x)
    even, odd = _hyperbolic(b, re)
    real, other = _turns(b, im, even, odd)
    flat = _either(b, b(aten.eq.Scalar, re, 0.0), b(aten.eq.Scalar, im, 0.0))
    sign = b(aten.logical_xor.default, b(aten.signbit.default, re), b(aten.signbit.default, im))
    nothing = b(aten.where.self, sign, whole(b, -0.0, re), whole(b, 0.0, re))
    real = b(aten.where.self, _endless(b, re, im), b(aten.abs.default, re), real)
    return Pair(real, b(aten.where.self, flat, nothing, other))


def _turned(b: Builder, x: Pair) -> Pair:
    """i x"""
    re, im = parts_of(x)
    return Pair(b(aten.neg.default, im), re)


def sin(b: Builder, x: Pair) -> Pair:
    """-i sinh(i x)"""
    re, im = parts_of(sinh(b, _turned(b, x)))
    return Pair(im, b(aten.neg.default, re))


def cos(b: Builder, x: Pair) -> Pair:
    """cosh(i x)"""
    return cosh(b, _turned(b, x))


def root(b: Builder, x: Pair) -> Pair:
    """Of larger part h = sqrt((|x| + |a|) / 2) and smaller part b / 2 h: the larger is real where a is not negative"""
    re, im = parts_of(x)
    size = b(aten.abs.default, _wide(b, re))
    length = or_infinity(b, x, b(aten.sqrt.default, squares(b, re, im)))
    larger = b(aten.sqrt.default, b(aten.mul.Tensor, b(aten.add.Tensor, length, size), 0.5))
    smaller = b(aten.div.Tensor, b(aten.mul.Tensor, b(aten.abs.default, _wide(b, im)), 0.5), larger)
    smaller = b(aten.where.self, b(aten.eq.Scalar, larger, 0.0), larger, smaller)
    negative = b(aten.lt.Scalar, re, 0.0)
    real, other = (_narrow(b, b(aten.where.self, negative, *pair)) for pair in ((smaller, larger), (larger, smaller)))
    endless = b(aten.isinf.default, im)
    infinity = whole(b, math.inf, re)
    real, other = (b(aten.where.self, endless, infinity, part) for part in (real, other))
    return Pair(real, b(aten.copysign.Tensor, other, im))


def inverse_root(b: Builder, x: Pair) -> Pair:
    """1 / sqrt(x)"""
    return quotient(b, Pair(1.0, 0.0), root(b, x))


def logarithm_to(base: float) -> Any:
    """log(x) / log(base)"""

    def function(b: Builder, x: Pair) -> Pair:
        parts: list[Part] = [b(aten.div.Tensor, part, math.log(base)) for part in parts_of(logarithm(b, x))]
        return Pair(*parts)

    return function
