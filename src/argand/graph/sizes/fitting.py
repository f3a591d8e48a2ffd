"""Which expression of symbols a number is, given its values under several assignments of the symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TypeAlias

from argand.graph import time_limit
from argand.graph.sizes.expr import Const, Expr, FloorDiv, Mod, Sym, as_expr, as_int, evaluate, free_symbols
from argand.graph.sizes.relations import Number, Relation

Vector: TypeAlias = "tuple[int, ...]"
"""The values of a number, one per assignment."""

_MAX_DIVISOR = 64
_MAX_SLOPE = 1 << 31
_ROUNDED_TO = range(2, 17)  # divisors of multiples whose quotients are rounded
_MULTIPLIED = 4  # symbols whose products are tried too
_MAX_KNOWN = 96  # known expressions that are tried as building blocks


class Fitter:
    """Finds expressions by their values.

    Arguments:
        assignments: at least three, or two that are chosen well; no two symbols may go in step with each other.
            Symbols may be added.
        lines: a number may be a multiple, plus a constant, of what is no symbol. Three assignments that lie near each
            other show too little of that.

    Attributes:
        conditions: what must hold for the expressions found (exact divisions).
        rounds: a division was found: more assignments are needed to tell such expressions apart.
        divides: so it was, or one that was known was taken for a number.
    """

    def __init__(self, assignments: Sequence[Mapping[Sym, Number]], lines: bool = True) -> None:
        self.assignments = assignments
        self.lines = lines
        self.conditions: dict[Relation, None] = {}
        self.rounds = False
        self.divides = False
        self._learned: list[Expr] = []
        self._seen: set[Expr] = set()
        self._vectors: dict[Expr, tuple[Number, ...]] = {}
        self._searches: dict[tuple[int, ...], _Search] = {}
        for sym in assignments[0]:
            self.learn(sym)

    def vector(self, expr: Expr | Number) -> tuple[Number, ...]:
        """The values of an expression under the assignments.

        Raises:
            KeyError: a symbol without value.
            ArithmeticError: the arithmetic does (division by zero).
        """
        if not isinstance(expr, Expr):
            return (expr,) * len(self.assignments)
        vector = self._vectors.get(expr)
        if vector is None:
            names = [(sym, sym.name) for sym in free_symbols(expr)]
            rows = [{name: row[sym] for sym, name in names} for row in self.assignments]
            vector = self._vectors[expr] = tuple([evaluate(expr, row) for row in rows])
        return vector

    def learn(self, expr: Expr | Number) -> None:
        """An expression that other numbers may be, or be made of."""
        if isinstance(expr, Expr) and expr not in self._seen and not isinstance(expr, Const):
            try:
                self.vector(expr)
            except (KeyError, ZeroDivisionError):
                return
            self._seen.add(expr)
            self._learned.append(expr)

    def fit(
        self,
        values: Sequence[Number],
        at: Sequence[int] | None = None,
        measured: Callable[[], Expr | None] = lambda: None,
    ) -> int | Expr | None:
        """The expression with these values; None when there is none of a simple kind.

        Arguments:
            values: integers; also floats, for symbols of floats.
            at: the assignments that the values belong to; default: all.
            measured: finds the expression in another way, where there is none or one that is not for all numbers.
        """
        first = values[0]
        if all(value == first for value in values):
            return first if isinstance(first, int) else None
        places = tuple(range(len(self.assignments)) if at is None else at)
        search = self._searches.get(places)
        if search is None:
            search = self._searches[places] = _Search(self.conditions, self.lines)
        for learned in self._learned[search.count :]:
            column = self._vectors[learned]
            search.add(learned, tuple([column[place] for place in places]))
        vector = tuple(values)
        known = search.known.get((type(first), vector))
        if known is not None and known.has_divmod:
            self.divides = True
            self._keep_remainders(known, places)
        if known is not None or not all(isinstance(value, int) for value in vector):
            return known
        before = len(self.conditions)
        expr = search.compose(vector)  # type: ignore[arg-type]
        if expr is None or len(self.conditions) > before:
            other = measured()
            if other is not None:
                expr = other
                for condition in list(self.conditions)[before:]:
                    del self.conditions[condition]
        if expr is None or tuple([self.vector(expr)[place] for place in places]) != vector:
            return None
        self.learn(expr)
        if expr.has_divmod:
            self.rounds = self.divides = True
            self._keep_remainders(expr, places)
        return expr

    def _keep_remainders(self, expr: Expr, places: Sequence[int]) -> None:
        """Where all values of a symbol leave one remainder, what was found of its quotients holds for such values."""
        for sym, divisor in _divisors(expr).items():
            first, *others = [self.assignments[place][sym] for place in places]
            modulus = gcd(divisor, *(int(value - first) for value in others))
            if modulus > 1 and isinstance(first, int):
                self.conditions[Relation("eq", sym % modulus - first % modulus)] = None


def _divisors(expr: Expr) -> dict[Sym, int]:
    """Of each symbol that is divided, by what in all: a quotient of a quotient by their product."""
    divisors: dict[Sym, int] = {}
    pending = [(expr, 1)]
    while pending:
        part, outer = pending.pop()
        for atom in {atom for monomial, _ in part.poly for atom in monomial}:
            if isinstance(atom, FloorDiv | Mod):
                pending.append((as_expr(atom.args[0]), outer * (as_int(atom.args[1]) or 1)))
            elif isinstance(atom, Sym) and outer > 1:
                divisors[atom] = lcm(divisors.get(atom, 1), outer)
    return divisors


Block: TypeAlias = "tuple[Vector, Expr]"
Rule: TypeAlias = "Callable[[Vector, Vector, Expr, int], Expr | None]"


class _Search:
    """The derivation of expressions from known ones, by their values under some of the assignments.

    Arguments:
        conditions: receives what must hold for the expressions.
        lines: as for `Fitter`.

    Attributes:
        known: type and values -> expression.
        count: how many expressions were added.
    """

    def __init__(self, conditions: dict[Relation, None], lines: bool) -> None:
        self.conditions = conditions
        self.lines = lines
        self.known: dict[tuple[type, tuple[Number, ...]], Expr] = {}
        self.count = 0
        self._symbols: list[Block] = []
        self._products: list[Block] = []
        self._others: list[Block] = []

    def add(self, expr: Expr, vector: tuple[Number, ...]) -> None:
        """An expression that others may be made of."""
        self.count += 1
        key = type(vector[0]), vector
        if key in self.known:
            return
        self.known[key] = expr
        if not all(isinstance(value, int) for value in vector):
            return
        block: Block = vector, expr  # type: ignore[assignment]
        if not isinstance(expr, Sym):
            self._others.append(block)
            return
        self._symbols.append(block)
        if len(self._symbols) <= _MULTIPLIED:
            for values, sym in self._symbols:
                product = tuple([a * b for a, b in zip(block[0], values)])
                self._products.append((product, expr * sym))

    def compose(self, vector: Vector, depth: int = 3) -> Expr | None:
        """Sums, multiples, products, exact quotients and rounded quotients of known expressions."""
        time_limit.check()
        symbols = self._symbols
        blocks = [*symbols, *self._products, *self._others[:_MAX_KNOWN]]
        # What fits by chance is rarest among the first of these.
        rules: tuple[tuple[Rule, list[Block]], ...] = (
            (self._scaled, blocks),
            (self._shifted, blocks),
            (self._sum, blocks),
            (self._pair, blocks),
            (self._affine, symbols),
            (self._product, blocks if depth else []),
            (self._plane, symbols),
            (self._affine, blocks if self.lines else []),
            (_rounded, blocks),
        )
        for rule, candidates in rules:
            for values, expr in candidates:
                composed = rule(vector, values, expr, depth)
                if composed is not None:
                    return composed
        return None

    def _scaled(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        rest = _exact(vector, known)
        return expr * rest[0] if rest is not None and rest.count(rest[0]) == len(rest) else None

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
        """A known expression, or a multiple of a symbol plus a constant."""
        known = self.known.get((int, vector))
        if known is not None:
            return known
        for values, expr in self._symbols:
            line = _line(vector, values)
            if line is None or line[0].denominator != 1 or line[1].denominator != 1:
                continue
            if self.lines or line[0] == 1:
                return expr * int(line[0]) + int(line[1])
        return None

    def _pair(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        rest = _exact(vector, known)
        factor = None if rest is None else self.known.get((int, rest))
        return None if factor is None else expr * factor

    def _product(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        rest = _exact(vector, known)
        factor = None if rest is None else self.compose(rest, depth - 1)
        return None if factor is None else expr * factor

    def _plane(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        """`p*a + q*b + c` for two symbols."""
        for values, sym in self._symbols:
            if sym is expr:
                break
            coefficients = _plane(vector, known, values)
            if coefficients is not None:
                p, q, c = coefficients
                return expr * p + sym * q + c
        return None

    def _affine(self, vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
        """`(p*expr + q) / d`, exact under every assignment."""
        line = _line(vector, known)
        if line is None or abs(line[0]) >= _MAX_SLOPE:
            return None
        slope, start = line
        divisor = lcm(slope.denominator, start.denominator)
        if divisor > _MAX_DIVISOR:
            return None
        whole = expr * int(slope * divisor) + int(start * divisor)
        rest = whole % divisor
        if rest != 0:
            self.conditions[Relation("eq", rest)] = None
        return whole // divisor


def _exact(vector: Vector, by: Vector) -> Vector | None:
    if any(k < 2 or v % k for v, k in zip(vector, by)):
        return None
    return tuple([v // k for v, k in zip(vector, by)])


def _line(vector: Vector, known: Vector) -> tuple[Fraction, Fraction] | None:
    """(slope, start) with `vector == slope * known + start` everywhere; two points always lie on a line."""
    other = next((i for i, value in enumerate(known) if value != known[0]), 0)
    rise, run = vector[other] - vector[0], known[other] - known[0]
    if not rise or any((v - vector[0]) * run != rise * (k - known[0]) for v, k in zip(vector, known)):
        return None
    if len(set(known)) < 3:
        return None
    slope = Fraction(rise, run)
    return slope, vector[0] - slope * known[0]


def _rounded(vector: Vector, known: Vector, expr: Expr, depth: int) -> Expr | None:
    """`(p*expr + q) // d`, where the assignments, three of them at least, leave only one q."""
    if len(known) < 3:
        return None
    spread = max(range(1, len(known)), key=lambda i: abs(known[i] - known[0]))
    rise, run = vector[spread] - vector[0], known[spread] - known[0]
    if not rise or not run:
        return None
    ratio = abs(run / rise)
    for divisor in range(max(int(ratio) - 1, 2), min(int(ratio) + 3, _MAX_DIVISOR)):
        quotient = _floor(vector, known, expr, 1, divisor)
        if quotient is not None:
            return quotient
    for divisor in _ROUNDED_TO:
        nearest = (2 * rise * divisor + run) // (2 * run)
        if nearest not in (0, 1) and abs(nearest * run - rise * divisor) <= 2 * divisor:
            return _floor(vector, known, expr, nearest, divisor)
    return None


def _floor(vector: Vector, known: Vector, expr: Expr, slope: int, divisor: int) -> Expr | None:
    """`(slope*expr + q) // divisor`, where the values leave exactly one q (up to what changes nothing)."""
    least = max(divisor * v - slope * k for v, k in zip(vector, known))
    most = min(divisor * v - slope * k for v, k in zip(vector, known)) + divisor - 1
    return (expr * slope + least) // divisor if least == most else None


def _plane(vector: Vector, a: Vector, b: Vector) -> tuple[int, int, int] | None:
    """Integers (p, q, c) with `vector == p*a + q*b + c` everywhere; three points always lie in a plane."""
    count = len(vector)
    if count < 4:
        return None
    for i in range(1, count):
        for j in range(i + 1, count):
            a1, b1, v1 = a[i] - a[0], b[i] - b[0], vector[i] - vector[0]
            a2, b2, v2 = a[j] - a[0], b[j] - b[0], vector[j] - vector[0]
            det = a1 * b2 - a2 * b1
            if det == 0:
                continue
            p, q = v1 * b2 - v2 * b1, a1 * v2 - a2 * v1
            if p % det or q % det:
                return None
            p, q = p // det, q // det
            c = vector[0] - p * a[0] - q * b[0]
            return (p, q, c) if all(p * x + q * y + c == v for x, y, v in zip(a, b, vector)) else None
    return None
