"""Which expression of size symbols a number is, given its values at several assignments of the symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import lcm

from argand.graph import time_limit
from argand.graph.sizes.expr import Expr, Sym, as_int, bounds, evaluate
from argand.graph.sizes.expr_nodes import minimum_over_symbols
from argand.graph.sizes.symbolic import Condition, Dim

Assignment = Mapping[Sym, int]
Vector = tuple[int, ...]

_MAX_DIVISOR = 64
_MAX_KNOWN = 96  # known expressions that are tried as building blocks


class Fitter:
    """Finds expressions by their values.

    Arguments:
        assignments: at least three; no two symbols may go in step with each other.

    Attributes:
        conditions: what must hold for the expressions found (exact divisions).
        rounds: a division was found: more assignments are needed to tell such expressions apart.
    """

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self.environments = [{sym.name: value for sym, value in each.items()} for each in assignments]
        self.conditions: dict[Condition, None] = {}
        self.rounds = False
        self._known: dict[Vector, Expr] = {}
        self._failed: set[Vector] = set()
        for sym in assignments[0]:
            self.learn(sym)
        self._symbols = len(self._known)

    def vector(self, expr: Dim) -> Vector:
        """The values of an expression at the assignments."""
        return tuple([int(evaluate(expr, env)) for env in self.environments])

    def learn(self, expr: Dim) -> None:
        """An expression that other numbers may be, or be made of."""
        if isinstance(expr, Expr) and as_int(expr) is None:
            try:
                found = self.vector(expr)
            except (KeyError, ZeroDivisionError):
                return
            self._known.setdefault(found, expr)

    def fit(self, values: Sequence[int]) -> Dim | None:
        """The expression with these values, one per assignment; None when there is none of a simple kind."""
        vector = tuple(values)
        if all(value == vector[0] for value in vector):
            return vector[0]
        found = self._known.get(vector)
        if found is not None:
            return found
        if vector in self._failed:
            return None
        found = self._compose(vector, 3)
        if found is None:
            self._failed.add(vector)
            return None
        self._known[vector] = found
        self.rounds = self.rounds or found.has_divmod
        return found

    def _compose(self, vector: Vector, depth: int) -> Expr | None:
        """Sums, multiples, products, exact quotients and rounded quotients of known expressions."""
        time_limit.check()
        blocks = list(self._known.items())[:_MAX_KNOWN]
        symbols = blocks[: self._symbols]
        # What fits by chance is rarest among the first of these.
        for rule, candidates in (
            (self._scaled, blocks),
            (self._shifted, blocks),
            (self._sum, blocks),
            (self._affine, symbols),
            (self._product if depth else None, blocks),
            (self._affine, blocks),
            (self._rounded, blocks),
        ):
            if rule is None:
                continue
            for known, expr in candidates:
                made = rule(vector, known, expr, depth)
                if made is not None and self.vector(made) == vector:
                    return made
        return None

    def _product(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        rest = _exact(vector, known)
        if rest is None:
            return None
        if all(value == rest[0] for value in rest):
            return expr * rest[0]
        factor = self._known.get(rest) or self._compose(rest, depth - 1)
        return None if factor is None else expr * factor

    def _scaled(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        rest = _exact(vector, known)
        return expr * rest[0] if rest is not None and all(value == rest[0] for value in rest) else None

    def _shifted(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        gap = vector[0] - known[0]
        return expr + gap if all(v - k == gap for v, k in zip(vector, known)) else None

    def _sum(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        other = self._near(tuple([v - k for v, k in zip(vector, known)]))
        if other is not None:
            return expr + other
        other = self._near(tuple([v + k for v, k in zip(vector, known)]))
        return other - expr if other is not None else None

    def _near(self, vector: Vector) -> Expr | None:
        """A known expression, or a symbol plus a constant."""
        found = self._known.get(vector)
        if found is not None:
            return found
        for known, expr in list(self._known.items())[: self._symbols]:
            gap = vector[0] - known[0]
            if all(v - k == gap for v, k in zip(vector, known)):
                return expr + gap
        return None

    def _affine(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        """(p * expr + q) / d, exact at every assignment."""
        if known[0] == known[1]:
            return None
        slope = Fraction(vector[1] - vector[0], known[1] - known[0])
        start = vector[0] - slope * known[0]
        if any(slope * k + start != v for v, k in zip(vector, known)) or not slope:
            return None
        divisor = lcm(slope.denominator, start.denominator)
        if divisor > _MAX_DIVISOR:
            return None
        whole = expr * int(slope * divisor) + int(start * divisor)
        if divisor == 1:
            return whole
        rest = whole % divisor
        if rest != 0:
            self.conditions[Condition("eq", rest)] = None
        return whole // divisor

    def _rounded(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        """(expr + q) // d, where the assignments leave only one q."""
        if known[0] == known[1] or vector[0] == vector[1]:
            return None
        ratio = abs((known[1] - known[0]) / (vector[1] - vector[0]))
        for divisor in range(max(int(ratio) - 1, 2), min(int(ratio) + 3, _MAX_DIVISOR)):
            least = max(v * divisor - k for v, k in zip(vector, known))
            most = min(v * divisor + divisor - 1 - k for v, k in zip(vector, known))
            if least == most:
                return (expr + least) // divisor
        return None


def _exact(vector: Vector, by: Vector) -> Vector | None:
    if any(k < 2 or v % k for v, k in zip(vector, by)):
        return None
    return tuple([v // k for v, k in zip(vector, by)])


def at_least(expr: Dim, least: int) -> bool:
    """Whether `expr >= least` is certain, whatever the symbols are."""
    if isinstance(expr, int):
        return expr >= least
    low = minimum_over_symbols(expr)
    if low is not None:
        return low >= least
    proved = bounds(expr, {})[0]
    return proved is not None and proved >= least


def require(conditions: dict[Condition, None], expr: Dim, least: int = 0) -> bool:
    """Add the condition `expr >= least` unless it is certain; False when it certainly does not hold."""
    if at_least(expr, least):
        return True
    if isinstance(expr, int) or as_int(expr) is not None:
        return False
    conditions[Condition("ge", expr - least)] = None
    return True


def holds(conditions: Iterable[Condition], env: Mapping[str, int]) -> bool:
    """Whether sizes satisfy the conditions."""
    for condition in conditions:
        value = int(evaluate(condition.expr, env))
        if value < 0 if condition.kind == "ge" else value != 0:
            return False
    return True
