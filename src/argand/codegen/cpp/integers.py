"""Where the integers of a stage lie: which of 64 bits are computed in 32, which positions need no check.

In: a stage's facts. Out: both, as sets of statements.
"""

from __future__ import annotations

import torch

from argand.codegen.analysis import StageFacts
from argand.graph.sizes.expr import Expr, Simplifier, Var, as_int
from argand.graph.sizes.intervals import UNBOUNDED, Interval, hull, intersection, plus, times
from argand.ir.loops import Value, with_nested

_FAR = 1 << 31
_FOLLOWED = frozenset((torch.int32, torch.int64))
_SMALL: dict[torch.dtype, Interval] = {
    torch.bool: (0, 1),
    **{dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max) for dtype in (torch.int8, torch.uint8, torch.int16)},
}


def integers_of(facts: StageFacts, sizes: dict[Var, Expr]) -> tuple[set[Value], set[Value], set[Value]]:
    """int64 values that 32 bits hold, as those do that they are made of, `indirect`s that are within bounds, and those
    whose position follows from loop variables alone."""
    simplifier = Simplifier(sizes)
    narrow: set[Value] = set()
    inside: set[Value] = set()
    computed: set[Value] = set()
    limits: dict[Value, Interval] = {}
    for value in with_nested(facts.statements):
        if value.op not in _READING and all(arg in computed for arg in value.args if isinstance(arg, Value)):
            computed.add(value)
        if value.dtype not in _FOLLOWED:
            continue
        if value.op == "indirect":
            if _is_inside(value, limits):
                inside.add(value)
            continue
        limits[value] = low, high = _bounds(value, simplifier, limits)
        fits = low is not None and low >= -_FAR and high is not None and high < _FAR
        if value.dtype is torch.int32:
            if not fits:  # it wraps around
                limits[value] = (-_FAR, _FAR - 1)
        elif fits and value.op != "constant" and all(_fits(arg, narrow) for arg in value.args):
            narrow.add(value)
        elif not fits and value.op in _WRAPPING:
            limits[value] = UNBOUNDED
    return narrow, inside, {value for value in computed if value.op == "indirect"}


_READING = frozenset(("load", "masked", "reduction", "scan"))
_WRAPPING = frozenset(("add", "sub", "mul", "abs"))
_QUOTIENTS = frozenset(("floordiv", "truncdiv"))
_MADE_OF = frozenset(
    ("index_expr", "to_dtype", "divisor", "rshift", *_WRAPPING, "maximum", "minimum", "where", *_QUOTIENTS)
)


def _fits(arg: object, narrow: set[Value]) -> bool:
    """Whether what a value is made of is in 32 bits, too."""
    if not isinstance(arg, Value) or arg.dtype is not torch.int64 or arg in narrow:
        return True
    return arg.op == "constant" and fits(arg.args[0])


def fits(number: float) -> bool:
    """Whether 32 bits hold an integer."""
    return -_FAR <= int(number) < _FAR


def _is_inside(value: Value, limits: dict[Value, Interval]) -> bool:
    source, size, _ = value.args
    low, high = limits.get(source, UNBOUNDED)
    most = as_int(size)
    return low is not None and low >= 0 and high is not None and most is not None and high < most


def _bounds(value: Value, simplifier: Simplifier, limits: dict[Value, Interval]) -> Interval:
    if value.op == "constant":
        return int(value.args[0]), int(value.args[0])
    if value.op == "index_expr":
        return simplifier.bounds(value.args[0])
    if value.op not in _MADE_OF:
        return UNBOUNDED
    if value.op in ("to_dtype", "divisor"):
        source = value.args[0]
        if source.dtype in _SMALL:
            return _SMALL[source.dtype]
        return limits.get(source, UNBOUNDED)
    if value.op == "abs":
        low, high = limits.get(value.args[0], UNBOUNDED)
        return UNBOUNDED if low is None or high is None else (max(0, low, -high), max(-low, high))
    left, right = (limits.get(arg, UNBOUNDED) for arg in value.args[-2:])
    if value.op == "rshift":
        by = value.args[1]
        if by.op != "constant" or not 0 <= by.args[0] < 32:  # as many as 32 bits cannot be shifted by
            return UNBOUNDED
        (low, high), count = left, int(by.args[0])
        return None if low is None else low >> count, None if high is None else high >> count
    if value.op in _QUOTIENTS:
        return _quotient(left, value.args[1])
    if value.op == "add":
        return plus(left, right)
    if value.op == "sub":
        return plus(left, times((-1, -1), right))
    if value.op == "mul":
        return times(left, right)
    both = hull(left, right)
    if value.op == "minimum":
        return both[0], intersection(left, right)[1]
    if value.op == "maximum":
        return intersection(left, right)[0], both[1]
    return both


def _quotient(dividend: Interval, divisor: Value) -> Interval:
    """The least number of 32 bits by -1 is none of them."""
    low, high = dividend
    if low is None or high is None:
        return UNBOUNDED
    by = int(divisor.args[0]) if divisor.op == "constant" else 1
    most = max(-low, high) if abs(by) < 2 else max(-low, high) // abs(by) + 1
    return -most, most
