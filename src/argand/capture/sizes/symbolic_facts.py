"""Reasoning about conditions on symbols: what bounds imply, solving equalities, divisors."""

from __future__ import annotations

import math

from argand.graph.sizes.expr import ONE, Const, Expr, FloorDiv, Mod, Sym, as_expr
from argand.graph.sizes.expr_nodes import from_poly
from argand.graph.sizes.symbols import Relation, SymbolTable

Interval = tuple[int | None, int | None]


class Bounds:
    """What is known of the range of each symbol, and which conditions follow from it."""

    def __init__(self, table: SymbolTable) -> None:
        self.table = table
        self.low: dict[Sym, int] = {}
        self.high: dict[Sym, int] = {}

    def add(self, relation: Relation) -> None:
        """Learn from a condition that is guarded."""
        bound = single(relation)
        if bound is None:
            return
        sym, low, high = bound
        if low is not None:
            self.low[sym] = max(low, self.low.get(sym, low))
        if high is not None:
            self.high[sym] = min(high, self.high.get(sym, high))

    def of(self, sym: Sym) -> Interval:
        """The range of a symbol."""
        low = self.low.get(sym)
        if sym.minimum is not None and (low is None or sym.minimum > low):
            low = sym.minimum
        high, top = self.high.get(sym), self.table.maximum.get(sym)
        if top is not None and (high is None or top < high):
            high = top
        return low, high

    def interval(self, expr: Expr) -> Interval:
        """The range of an expression, as far as interval arithmetic knows."""
        low: int | None = 0
        high: int | None = 0
        for monomial, scale in expr.poly:
            factors: Interval = (1, 1)
            for atom in monomial:
                factors = _product(factors, self._atom(atom))
            a, b = factors if scale > 0 else (factors[1], factors[0])
            low = None if low is None or a is None else low + scale * a
            high = None if high is None or b is None else high + scale * b
        return low, high

    def _atom(self, atom: Expr) -> Interval:
        if isinstance(atom, Sym):
            return self.of(atom) if self.table.kinds.get(atom) == "int" else (None, None)
        if isinstance(atom, (FloorDiv, Mod)) and isinstance(atom.right, Const) and atom.right.value > 0:
            divisor = atom.right.value
            if isinstance(atom, Mod):
                return 0, divisor - 1
            low, high = self.interval(atom.left)
            return None if low is None else low // divisor, None if high is None else high // divisor
        return None, None

    def implied(self, relation: Relation) -> bool:
        """Whether the ranges prove a condition (of integers)."""
        for side in (relation.left, relation.right):
            if not isinstance(side, (int, Expr)) or self._has_float(side):
                return False
        low, high = self.interval(as_expr(relation.left) - as_expr(relation.right))  # type: ignore[arg-type]
        if relation.op == "eq":
            return low == 0 and high == 0
        if relation.op == "ne":
            return (low is not None and low > 0) or (high is not None and high < 0)
        if relation.op in ("gt", "ge"):
            return low is not None and low >= (relation.op == "gt")
        return high is not None and high <= -(relation.op == "lt")

    def _has_float(self, side: object) -> bool:
        return isinstance(side, Expr) and any(self.table.kinds.get(s) == "float" for s in side.free)  # type: ignore[call-overload]


def _product(left: Interval, right: Interval) -> Interval:
    if left[0] is None or left[0] < 0 or right[0] is None or right[0] < 0:
        if None in left or None in right:
            return None, None
        corners = [a * b for a in left for b in right]  # type: ignore[operator]
        return min(corners), max(corners)
    return left[0] * right[0], None if left[1] is None or right[1] is None else left[1] * right[1]


def single(relation: Relation) -> tuple[Sym, int | None, int | None] | None:
    """(symbol, least, greatest value) of a condition on one symbol that occurs linearly; None for other conditions."""
    if not isinstance(relation.left, (int, Expr)) or not isinstance(relation.right, (int, Expr)):
        return None
    if relation.op not in ("lt", "le", "gt", "ge"):
        return None
    gap = as_expr(relation.left) - as_expr(relation.right)
    scale, offset, sym = 0, 0, None
    for monomial, coefficient in gap.poly:
        if not monomial:
            offset = coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], Sym) and sym is None:
            sym, scale = monomial[0], coefficient
        else:
            return None
    if sym is None:
        return None
    # scale*sym + offset op 0
    if relation.op in ("lt", "le"):
        scale, offset = -scale, -offset
    least = 1 if relation.op in ("lt", "gt") else 0
    if scale > 0:
        return sym, -((offset - least) // scale), None  # scale*sym >= least - offset
    return sym, None, (offset - least) // -scale


def moduli(relation: Relation) -> int:
    """The least common multiple of the constant divisors in a condition."""
    multiple = 1
    for side in (relation.left, relation.right):
        if isinstance(side, Expr) and side.has_divmod:
            for divisor in _divisors(side):
                multiple = math.lcm(multiple, divisor)
    return multiple


def is_range(relation: Relation) -> bool:
    """An equality that a range of sizes may meet: quotients that are a constant (`(s0 + 63) // 64 == 1`)."""
    sides = [as_expr(side) for side in (relation.left, relation.right) if isinstance(side, (int, Expr))]
    return any(isinstance(side, FloorDiv) for side in sides) and any(isinstance(side, Const) for side in sides)


def _divisors(expr: Expr) -> list[int]:
    divisors = []
    for monomial, _ in expr.poly:
        for atom in monomial:
            if isinstance(atom, (FloorDiv, Mod)):
                divisors += _divisors(atom.left)
                if isinstance(atom.right, Const) and atom.right.value > 0:
                    divisors.append(atom.right.value)
    return divisors


def solve(relation: Relation, order: list[Sym]) -> tuple[Sym, Expr] | None:
    """`left == right` as (symbol, expression of earlier symbols), for the latest symbol where that is possible."""
    if not isinstance(relation.left, (int, Expr)) or not isinstance(relation.right, (int, Expr)):
        return None
    gap = as_expr(relation.left) - as_expr(relation.right)
    for sym in reversed(order):
        if sym not in gap.free:
            continue
        scale = next((c for m, c in gap.poly if m == (sym,)), 0)
        rest = from_poly({m: c for m, c in gap.poly if m != (sym,)})
        if sym in rest.free:
            return None
        if scale in (1, -1):
            return sym, rest * -scale
        if isinstance(rest, Const) and scale and rest.value % scale == 0:
            return sym, ONE * (-rest.value // scale)
        return None
    return None
