"""Conditions on sizes and numbers, and what follows from them: ranges of symbols, solved equalities, divisors."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from argand.graph.python_operators import COMPARISONS
from argand.graph.sizes.expr import ONE, Const, Expr, FloorDiv, Mod, Sym, as_expr, as_int, evaluate, free_symbols
from argand.graph.sizes.expr_nodes import Var, from_poly
from argand.graph.sizes.intervals import UNBOUNDED, Interval, by_minimum, intersection, interval, proves
from argand.quick_dataclasses import dataclass

Number: TypeAlias = "int | float"
Value: TypeAlias = "Expr | int | float"
_FAR = 1 << 16


@dataclass(frozen=True, slots=True)
class Relation:
    """A condition on symbols, `left op right`; op is the name of a comparison."""

    op: str
    left: Value
    right: Value = 0

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def symbols(self) -> frozenset[Sym]:
        """The symbols in it."""
        symbols: frozenset[Sym] = frozenset()
        for side in (self.left, self.right):
            if isinstance(side, Expr):
                symbols |= free_symbols(side)
        return symbols

    @property
    def sign(self) -> str:
        """How Python writes the relation: "==" and so on."""
        return COMPARISONS[self.op].symbol

    @property
    def has_float(self) -> bool:
        """Whether a side is a float; symbols may be floats too."""
        return isinstance(self.left, float) or isinstance(self.right, float)

    @property
    def says_sign(self) -> bool:
        """Whether it says whether one symbol is negative, of which its minimum does not."""
        bound = single(self)
        return bound is not None and bound[0].minimum is None and any(proves(bound[1], op) for op in ("ge", "lt"))

    @property
    def gap(self) -> Expr:
        """`left - right`, which stands in the same relation to 0.

        Raises:
            TypeError: a side is a float, which has no place in an expression.
        """
        if isinstance(self.left, float) or isinstance(self.right, float):
            raise TypeError(f"a side of {self} is a float")
        return as_expr(self.left) - as_expr(self.right)

    def negated(self) -> Relation:
        """The opposite condition (of numbers that are not NaN)."""
        return Relation(COMPARISONS[self.op].opposite, self.left, self.right)

    def compare(self, left: Number, right: Number) -> bool:
        """The relation between two numbers."""
        return bool(COMPARISONS[self.op].native(left, right))


def split_constant(expr: Expr) -> tuple[Expr, int]:
    """(the expression without its constant, the constant)."""
    constant = next((scale for monomial, scale in expr.poly if not monomial), 0)
    return expr - constant, constant


def hold(relations: Iterable[Relation], env: Mapping[str, Number]) -> bool:
    """Whether numbers, by the names of symbols, satisfy the conditions."""
    for relation in relations:
        left, right = (
            evaluate(side, env) if isinstance(side, Expr) else side for side in (relation.left, relation.right)
        )
        if not relation.compare(left, right):
            return False
    return True


def at_least(expr: Expr | int, least: int) -> bool:
    """Whether `expr >= least` is certain, whatever the symbols are."""
    return proves(interval(as_expr(expr) - least, by_minimum, {}), "ge")


def require(relations: dict[Relation, None], expr: Expr | int, least: int = 0) -> bool:
    """Add the condition `expr >= least` unless it is certain; False when it certainly does not hold."""
    if at_least(expr, least):
        return True
    if as_int(expr) is not None:
        return False
    relations[Relation("ge", expr - least)] = None
    return True


class Bounds:
    """What is known of the range of each symbol, and which conditions follow from it.

    Arguments:
        kinds: "int" or "float", of each symbol; of numbers that are not integers nothing is known.
        maximum: the greatest value of a symbol, where there is one.
    """

    def __init__(self, kinds: Mapping[Sym, str], maximum: Mapping[Sym, int]) -> None:
        self.kinds = kinds
        self.maximum = maximum
        self.ranges: dict[Sym, Interval] = {}

    def add(self, relation: Relation) -> None:
        """Learn from a condition that is guarded."""
        bound = single(relation)
        if bound is not None:
            sym, limits = bound
            self.ranges[sym] = intersection(limits, self.ranges.get(sym, UNBOUNDED))

    def of(self, sym: Sym) -> Interval:
        """The range of a symbol."""
        own: Interval = (sym.minimum, self.maximum.get(sym))
        learned = self.ranges.get(sym)
        return own if learned is None else intersection(own, learned)

    def interval(self, expr: Expr) -> Interval:
        """The range of an expression, as far as interval arithmetic knows."""
        return interval(expr, self._of_atom, {})

    def _of_atom(self, atom: Sym | Var) -> Interval:
        return self.of(atom) if isinstance(atom, Sym) and self.kinds.get(atom) == "int" else UNBOUNDED

    def implied(self, relation: Relation) -> bool:
        """Whether the ranges prove a condition (of integers)."""
        return not self.has_float(relation) and proves(self.interval(relation.gap), relation.op)

    def has_float(self, relation: Relation) -> bool:
        """Whether a condition is not one of integers."""
        return relation.has_float or any(self.kinds.get(sym) == "float" for sym in relation.symbols)


def single(relation: Relation) -> tuple[Sym, Interval] | None:
    """The symbol and its range, by a condition on one symbol that occurs linearly; None for other conditions."""
    if relation.has_float or relation.op not in ("lt", "le", "gt", "ge"):
        return None
    scale, offset, sym = 0, 0, None
    for monomial, coefficient in relation.gap.poly:
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
        return sym, (-((offset - least) // scale), None)  # scale*sym >= least - offset
    return sym, (None, (offset - least) // -scale)


def between(sym: Sym, relations: Iterable[Relation]) -> list[Relation]:
    """Conditions on other symbols under which inequalities leave one a value."""
    least: list[Expr] = [] if sym.minimum is None else [as_expr(sym.minimum)]
    most: list[Expr] = []
    for relation in relations:
        if relation.has_float or relation.op not in ("lt", "le", "gt", "ge"):
            continue
        gap = relation.gap if relation.op in ("lt", "le") else relation.gap * -1
        scale = next((c for m, c in gap.poly if m == (sym,)), 0)
        rest = gap - sym * scale + (relation.op in ("lt", "gt"))
        if sym not in rest.free and scale in (1, -1):  # scale*sym + rest <= 0
            (most if scale > 0 else least).append(rest * -scale)
    gaps = [low - high for low in least for high in most]
    return [Relation("le", gap, 0) for gap in gaps if not isinstance(gap, Const)]


def with_room(relation: Relation, sym: Sym, values: Mapping[Sym, Number]) -> list[Relation]:
    """Limits of the other symbols of an inequality that holds for `values`, which leave `sym` room to vary."""
    others = sorted(relation.symbols - {sym}, key=str)
    if len(others) == len(relation.symbols) or relation.op not in ("lt", "le", "gt", "ge"):
        return []
    limits = []
    for other in others if all(other in values for other in others) else ():
        value = values[other]
        for op, sign in (("le", 1), ("ge", -1)):
            step = _farthest(relation, other, values, sign)
            if isinstance(value, int) and step < _FAR:
                limits.append(Relation(op, other, value + sign * (step // (len(others) + 1))))
    return limits


def _farthest(relation: Relation, sym: Sym, values: Mapping[Sym, Number], sign: int) -> int:
    """How far a symbol may move from its value, until the relation no longer holds."""
    names = {each.name: value for each, value in values.items()}

    def fails(step: int) -> bool:
        try:
            return not hold([relation], {**names, sym.name: values[sym] + sign * step})
        except ArithmeticError:
            return True

    return bisect.bisect(range(1, _FAR + 1), 0, key=fails)


def moduli(relation: Relation) -> int:
    """The least common multiple of the constant divisors in a condition."""
    sides = [side for side in (relation.left, relation.right) if isinstance(side, Expr) and side.has_divmod]
    return math.lcm(*(divisor for side in sides for divisor in _divisors(side)))


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
    if relation.has_float:
        return None
    gap = relation.gap
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
