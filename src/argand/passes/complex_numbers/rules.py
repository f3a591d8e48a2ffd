"""What complex operations are on pairs: one function per kind, in tables by ATen overload.

A rule takes the translation at hand, the node, and the node's arguments as the op's schema orders them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.complex_numbers import arithmetic, functions
from argand.passes.complex_numbers.arithmetic import PARTS, Pair, Part, aten, minus, negative, plus, product, times


class Parts(Protocol):
    """What a rule asks for: the graph's builder, and arguments as pairs."""

    builder: Builder

    def pair(self, value: Any, dtype: torch.dtype) -> Pair:
        """A complex tensor, a real one or a number, as parts of `dtype`."""
        ...


Rule = Callable[..., Pair]

COMPUTED: Final[dict[Any, Rule]] = {}
"""Operations whose complex result is computed as a pair."""

VIEWS: Final[dict[Any, Rule]] = {}
"""Views and values from nothing: a pair where what computes with them needs one."""

READ: Final[dict[Any, Callable[..., fx.Node]]] = {}
"""Operations with a real result on complex tensors."""


def _dtype(node: fx.Node) -> torch.dtype:
    """The dtype of the parts of a complex result."""
    return PARTS[node.meta["val"].dtype]


# --- arithmetic


def _binary(operation: Callable[[Builder, Pair, Pair], Pair]) -> Rule:
    def rule(p: Parts, node: fx.Node, x: Any, y: Any) -> Pair:
        return operation(p.builder, p.pair(x, _dtype(node)), p.pair(y, _dtype(node)))

    return rule


def _sum_rule(sign: int, swapped: bool = False) -> Rule:
    def rule(p: Parts, node: fx.Node, x: Any, y: Any, alpha: Any = 1) -> Pair:
        b, dtype = p.builder, _dtype(node)
        one, other = (p.pair(each, dtype) for each in ((y, x) if swapped else (x, y)))
        # as eager does also by 1: parts beside infinite ones are nan; a difference is a sum of -alpha times the other
        scale = p.pair(alpha, dtype) if sign > 0 else p.pair(-alpha, dtype)
        other = product(b, other, scale)
        return Pair(plus(b, one.re, other.re), plus(b, one.im, other.im))

    return rule


def _conjugate(p: Parts, node: fx.Node, x: Any) -> Pair:
    given = p.pair(x, _dtype(node))
    return Pair(given.re, negative(p.builder, given.im))


def _reciprocal(p: Parts, node: fx.Node, x: Any) -> Pair:
    return arithmetic.quotient(p.builder, Pair(1.0, 0.0), p.pair(x, _dtype(node)))


def _sign(p: Parts, node: fx.Node, x: Any) -> Pair:
    """x / |x|, 0 of 0"""
    b, given = p.builder, p.pair(x, _dtype(node))
    length = arithmetic.absolute(b, given)
    zero = b(aten.eq.Scalar, length, 0.0)
    nothing = arithmetic.whole(b, 0.0, length)
    parts = [b(aten.where.self, zero, nothing, b(aten.div.Tensor, part, length)) for part in (given.re, given.im)]
    return Pair(*parts)


def _polar(p: Parts, node: fx.Node, length: Any, angle: Any) -> Pair:
    b = p.builder
    return Pair(*[b(aten.mul.Tensor, length, b(turn.default, angle)) for turn in (aten.cos, aten.sin)])


def _together(p: Parts, node: fx.Node, re: Any, im: Any) -> Pair:
    return Pair(re, im)


def _power(p: Parts, node: fx.Node, x: Any, exponent: Any) -> Pair:
    given = p.pair(x, _dtype(node))
    square = product(p.builder, given, given)
    return square if exponent == 2 else product(p.builder, square, given)


def _converted(p: Parts, node: fx.Node, x: Any, **options: Any) -> Pair:
    return p.pair(x, _dtype(node))


COMPUTED.update({
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _binary(product)),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _binary(arithmetic.quotient)),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _sum_rule(1)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _sum_rule(-1)),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), _sum_rule(-1, swapped=True)),
    **dict.fromkeys((aten._conj.default, aten.conj_physical.default, aten._conj_physical.default), _conjugate),
    aten.reciprocal.default: _reciprocal, aten.sgn.default: _sign, aten.polar.default: _polar,
    aten.complex.default: _together, aten._to_copy.default: _converted,
    aten.pow.Tensor_Scalar: _power,
})  # fmt: skip
FLOATS: Final = {
    aten.exp.default: arithmetic.exponential, aten.log.default: arithmetic.logarithm,
    aten.log2.default: functions.logarithm_to(2), aten.log10.default: functions.logarithm_to(10),
    aten.sin.default: functions.sin, aten.cos.default: functions.cos, aten.sinh.default: functions.sinh,
    aten.cosh.default: functions.cosh, aten.sqrt.default: functions.root, aten.rsqrt.default: functions.inverse_root,
}  # fmt: skip
"""Functions of numbers of two floats; of doubles the library's are as fast."""

for _target, _function in FLOATS.items():
    COMPUTED[_target] = lambda p, node, x, function=_function: function(p.builder, p.pair(x, _dtype(node)))


# --- the same on both parts


def _each(p: Parts, node: fx.Node, *args: Any, **kwargs: Any) -> Pair:
    """The operation on the real parts of all tensors, and on their imaginary parts."""
    dtype = _dtype(node)

    def part(value: Any, which: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(part(item, which) for item in value)
        if isinstance(value, fx.Node) and value.meta["val"].dtype in PARTS:
            given = p.pair(value, dtype)
            return (given.re, given.im)[which]
        return PARTS.get(value, value) if isinstance(value, torch.dtype) else value

    return Pair(*[
        p.builder(node.target, *[part(arg, which) for arg in args], **{k: part(v, which) for k, v in kwargs.items()})
        for which in range(2)
    ])  # fmt: skip


def _mean(p: Parts, node: fx.Node, *args: Any, **kwargs: Any) -> Pair:
    """Eager divides the sum by a complex number, whose part of zero makes nan of what is beside an infinite part."""
    b, mean = p.builder, _each(p, node, *args, **kwargs)
    re, im = (times(b, part, 0.0) for part in (mean.re, mean.im))
    return Pair(plus(b, mean.re, im), minus(b, mean.im, re))


def _joined(p: Parts, node: fx.Node, tensors: Any, dim: int = 0) -> Pair:
    """Of real tensors among complex ones the imaginary parts are zeros."""
    b, dtype = p.builder, _dtype(node)
    pairs = [p.pair(each, dtype) for each in tensors]
    imaginary = [b(aten.full_like.default, pair.re, pair.im) if pair.im == 0.0 else pair.im for pair in pairs]
    return Pair(b(aten.cat.default, [pair.re for pair in pairs], dim), b(aten.cat.default, imaginary, dim))


def _where(p: Parts, node: fx.Node, mask: Any, x: Any, y: Any) -> Pair:
    b, dtype = p.builder, _dtype(node)
    one, other = p.pair(x, dtype), p.pair(y, dtype)
    like = next(part for part in (one.re, other.re, mask) if isinstance(part, fx.Node))

    def filled(part: Part) -> fx.Node:
        if isinstance(part, fx.Node):
            return part
        number: fx.Node = b(aten.full.default, [], part, dtype=dtype, device=like.meta["device"])
        return number

    return Pair(*[b(aten.where.self, mask, filled(a), filled(c)) for a, c in ((one.re, other.re), (one.im, other.im))])


def _masked(p: Parts, node: fx.Node, x: Any, mask: Any, value: Any) -> Pair:
    return _where(p, node, mask, value, x)


def _padded(p: Parts, node: fx.Node, x: Any, pad: Any, value: Any = 0) -> Pair:
    given, outside = p.pair(x, _dtype(node)), p.pair(value, _dtype(node))
    parts = ((given.re, outside.re), (given.im, outside.im))
    return Pair(*[p.builder(aten.constant_pad_nd.default, part, pad, number) for part, number in parts])


LINEAR: Final = (
    aten.index_select.default, aten.index.Tensor, aten.gather.default, aten.flip.default,
    aten.roll.default, aten.repeat.default, aten.slice_scatter.default, aten.select_scatter.default, aten.sum.default,
    aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default, aten.clone.default, aten.neg.default,
    aten.tril.default, aten.triu.default, aten.index_add.default, aten.embedding.default,
    aten.diagonal_scatter.default, aten.scatter_add.default, aten.index_put.default,
)  # fmt: skip
"""Moves and sums: the same on both parts."""

INDEXED: Final = frozenset((
    aten.index_select.default, aten.index.Tensor, aten.gather.default, aten.index_add.default, aten.embedding.default,
    aten.scatter_add.default, aten.index_put.default,
))  # fmt: skip
"""Those of them that take positions."""

COMPUTED.update(dict.fromkeys(LINEAR, _each))
COMPUTED.update(dict.fromkeys((aten.mean.default, aten.mean.dim), _mean))
COMPUTED.update(
    {
        aten.cat.default: _joined,
        aten.where.self: _where,
        aten.masked_fill.Scalar: _masked,
        aten.constant_pad_nd.default: _padded,
    }
)


# --- views, and values from nothing


def _shaped(p: Parts, node: fx.Node, x: Any, size: Any) -> Pair:
    given = p.pair(x, _dtype(node))
    b, shape = p.builder, list(node.meta["val"].shape)

    def view(part: fx.Node) -> fx.Node:
        try:
            viewed: fx.Node = b(aten.view.default, part, shape)
        except RuntimeError:  # laid out otherwise than the whole
            copied = b(aten.clone.default, part, memory_format=torch.contiguous_format)
            viewed = b(aten.view.default, copied, shape)
        return viewed

    return Pair(*[view(part) for part in arithmetic.parts_of(given)])


def _of_pairs(p: Parts, node: fx.Node, x: Any) -> Pair:
    return Pair(*[p.builder(aten.select.int, x, -1, which) for which in range(2)])


def _filled(p: Parts, node: fx.Node, size: Any, value: Any, **options: Any) -> Pair:
    given, b = p.pair(value, _dtype(node)), p.builder
    device = node.meta["device"]
    return Pair(*[b(aten.full.default, size, part, dtype=_dtype(node), device=device) for part in (given.re, given.im)])


VIEWS.update(dict.fromkeys((aten.view.default, aten._unsafe_view.default), _shaped))
VIEWS.update(dict.fromkeys((
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.slice.Tensor, aten.select.int, aten.alias.default,
    aten.detach.default, aten.diagonal.default, aten.unfold.default,
), _each))  # fmt: skip
FROM_REAL: Final = {aten.view_as_complex.default: _of_pairs, aten.full.default: _filled}
VIEWS.update(FROM_REAL)


# --- what is real


def _as_real(p: Parts, node: fx.Node, x: fx.Node) -> fx.Node:
    return joined(p.builder, p.pair(x, node.meta["val"].dtype))


def joined(b: Builder, x: Pair) -> fx.Node:
    """The parts of each number beside each other, along a last dimension of two."""
    parts = [b(aten.unsqueeze.default, part, -1) for part in arithmetic.parts_of(x)]
    both: fx.Node = b(aten.cat.default, parts, -1)
    return both


def _absolute(p: Parts, node: fx.Node, x: fx.Node) -> fx.Node:
    return arithmetic.absolute(p.builder, p.pair(x, node.meta["val"].dtype))


def _angle(p: Parts, node: fx.Node, x: fx.Node) -> fx.Node:
    re, im = arithmetic.parts_of(p.pair(x, node.meta["val"].dtype))
    angle: fx.Node = p.builder(aten.atan2.default, im, re)
    return angle


def _compared(each: Any, both: Any) -> Callable[..., fx.Node]:
    def rule(p: Parts, node: fx.Node, x: Any, y: Any) -> fx.Node:
        dtypes = {arg.meta["val"].dtype for arg in (x, y) if isinstance(arg, fx.Node)}
        dtype = torch.float64 if torch.float64 in dtypes or torch.complex128 in dtypes else torch.float32
        one, other, b = p.pair(x, dtype), p.pair(y, dtype), p.builder
        like = next(part for part in (one.re, other.re) if isinstance(part, fx.Node))
        tests = [
            b(each.Tensor if isinstance(c, fx.Node) else each.Scalar, arithmetic.whole(b, a, like), c)
            for a, c in ((one.re, other.re), (one.im, other.im))
        ]
        answer: fx.Node = b(both.default, *tests)
        return answer

    return rule


def _tested(test: Any, both: Any) -> Callable[..., fx.Node]:
    def rule(p: Parts, node: fx.Node, x: fx.Node) -> fx.Node:
        given = p.pair(x, PARTS[x.meta["val"].dtype])
        answer: fx.Node = p.builder(both.default, *[p.builder(test.default, part) for part in (given.re, given.im)])
        return answer

    return rule


READ.update({
    aten.view_as_real.default: _as_real,
    aten.abs.default: _absolute, aten.angle.default: _angle, aten.isnan.default: _tested(aten.isnan, aten.logical_or),
    aten.isinf.default: _tested(aten.isinf, aten.logical_or),
    aten.isfinite.default: _tested(aten.isfinite, aten.logical_and),
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), _compared(aten.eq, aten.logical_and)),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), _compared(aten.ne, aten.logical_or)),
})  # fmt: skip
