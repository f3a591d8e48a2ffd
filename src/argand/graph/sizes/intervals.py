"""Interval arithmetic on expressions: the least and the greatest value that is certain, from those of their symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from argand.graph.sizes.expr_nodes import Expr, Mod, Sym, Var

Interval: TypeAlias = "tuple[int | None, int | None]"
"""Least and greatest value, inclusive; None where nothing is known."""

UNBOUNDED: Final[Interval] = (None, None)


def times(left: Interval, right: Interval) -> Interval:
    """Where products of a number from each lie."""
    if left == (1, 1):
        return right
    (a, b), (c, d) = left, right
    if a is not None and b is not None and c is not None and d is not None:
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if a is not None and a >= 0 and c is not None and c >= 0:
        return a * c, None
    if a != b:
        left, right = right, left
    factor = left[0]
    if factor is None or factor != left[1]:
        return UNBOUNDED
    low, high = (None if end is None else end * factor for end in right)
    return (low, high) if factor >= 0 else (high, low)


def plus(left: Interval, right: Interval) -> Interval:
    """Where sums of a number from each lie."""
    low = None if left[0] is None or right[0] is None else left[0] + right[0]
    high = None if left[1] is None or right[1] is None else left[1] + right[1]
    return low, high


def intersection(left: Interval, right: Interval) -> Interval:
    """Where numbers that lie in both lie."""
    low = left[0] if right[0] is None or (left[0] is not None and left[0] > right[0]) else right[0]
    high = left[1] if right[1] is None or (left[1] is not None and left[1] < right[1]) else right[1]
    return low, high


def hull(left: Interval, right: Interval) -> Interval:
    """Where numbers that lie in either lie."""
    low = None if left[0] is None or right[0] is None else min(left[0], right[0])
    high = None if left[1] is None or right[1] is None else max(left[1], right[1])
    return low, high


def proves(interval: Interval, op: str) -> bool:
    """Whether `number op 0` holds for all numbers of the interval; `op` is the name of a comparison."""
    low, high = interval
    if op == "eq":
        return low == 0 and high == 0
    if op == "ne":
        return (low is not None and low > 0) or (high is not None and high < 0)
    if op in ("gt", "ge"):
        return low is not None and low >= (op == "gt")
    return high is not None and high <= -(op == "lt")


def interval(expr: Expr, of_atom: Callable[[Sym | Var], Interval], memo: dict[Expr, Interval]) -> Interval:
    """Where the values of an expression lie.

    Arguments:
        of_atom: where those of a symbol or loop variable lie.
        memo: results so far, under the same `of_atom`.
    """
    known = memo.get(expr)
    if known is not None:
        return known
    low: int | None = 0
    high: int | None = 0
    for monomial, scale in expr.poly:
        term: Interval = (1, 1)
        for atom in monomial:
            leaf = isinstance(atom, (Sym, Var))
            term = times(term, of_atom(atom) if leaf else _quotient(atom, of_atom, memo))  # type: ignore[arg-type]
        term = times(term, (scale, scale))
        low = None if low is None or term[0] is None else low + term[0]
        high = None if high is None or term[1] is None else high + term[1]
    memo[expr] = (low, high)
    return low, high


def _quotient(atom: Expr, of_atom: Callable[[Sym | Var], Interval], memo: dict[Expr, Interval]) -> Interval:
    """Of a rounded quotient or a remainder."""
    low, high = interval(atom.args[0], of_atom, memo)
    divisor_low, divisor_high = interval(atom.args[1], of_atom, memo)
    if divisor_low is None or divisor_low < 1:
        return UNBOUNDED
    if isinstance(atom, Mod):
        if low is not None and low >= 0 and high is not None and high < divisor_low:
            return low, high
        return 0, None if divisor_high is None else divisor_high - 1
    if divisor_high == divisor_low:
        return None if low is None else low // divisor_low, None if high is None else high // divisor_low
    return 0 if low is not None and low >= 0 else None, None if high is None else max(high // divisor_low, 0)


def by_minimum(sym: Sym | Var) -> Interval:
    """What is known of a symbol by itself."""
    return (sym.minimum if isinstance(sym, Sym) else None), None
