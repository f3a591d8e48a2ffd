"""The search behind `SymbolTable.fit`: which expression has these values under these assignments?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

from argand.graph.sizes.expr import Const, Expr, FloorDiv, Simplifier, Sym, free_symbols

Number: TypeAlias = "int | float"

_ATOMS = 48  # expressions tried as parts of a new one
_DIVISORS = 64


@dataclass(frozen=True, slots=True)
class Assumption:
    """`expr % modulus == 0`."""

    expr: Expr
    modulus: int

    def __str__(self) -> str:
        return f"({self.expr}) % {self.modulus} == 0"


Found = tuple[Expr, Assumption | None]


class Symbols(Protocol):
    """What the search asks of a `SymbolTable`."""

    @property
    def symbols(self) -> Sequence[Sym]: ...
    @property
    def kinds(self) -> Mapping[Sym, str]: ...
    @property
    def maximum(self) -> Mapping[Sym, int]: ...
    def evaluate(self, value: Expr, assignment: Mapping[Sym, Number]) -> Number: ...
    def vector(self, value: Expr) -> tuple[Number, ...]: ...


class Fits:
    """Expressions known so far, by their values, and the derivation of new ones."""

    def __init__(self, table: Symbols) -> None:
        self.table = table
        self._known: list[Expr] = []
        self._seen: set[Expr] = set()
        self._indexes: dict[tuple[int, ...], tuple[dict[Any, Expr], int]] = {}

    def know(self, value: Expr) -> None:
        """Add an expression to those that `fit` tries first."""
        if value not in self._seen and not isinstance(value, Const):
            self._seen.add(value)
            self._known.append(value)

    def bounds(self, value: Expr) -> tuple[int | None, int | None]:
        """Interval arithmetic with the symbols' minimum and maximum."""
        low, high = Simplifier({}).bounds(value)
        maximum = self.table.maximum
        if high is None and maximum and not value.has_divmod and all(s in maximum for s in free_symbols(value)):
            if all(scale > 0 for monomial, scale in value.poly if monomial):
                high = int(self.table.evaluate(value, {s: maximum[s] for s in free_symbols(value)}))
        return low, high

    # ---------------------------------------------------------------- search

    def fit(self, values: tuple[Number, ...], at: tuple[int, ...], rough_ok: bool) -> Found | None:
        """The expression and the assumption that it needs."""
        first = values[0]
        if all(value == first for value in values):
            return (Const(first), None) if isinstance(first, int) else None
        found = self._lookup(values, at)
        if found is not None:
            return found, None
        if any(not isinstance(value, int) for value in values):
            return None
        result = self._derive(values, at, rough_ok)  # type: ignore[arg-type]
        if result is None or self._values(result[0], at) != values:
            return None
        self.know(result[0])
        return result

    def _values(self, value: Expr, at: tuple[int, ...]) -> tuple[Number, ...]:
        vector = self.table.vector(value)
        return tuple([vector[i] for i in at])

    def _lookup(self, values: tuple[Number, ...], at: tuple[int, ...]) -> Expr | None:
        index, done = self._indexes.get(at, ({}, 0))
        if done < len(self._known):
            for value in self._known[done:]:
                vector = self._values(value, at)
                index.setdefault((type(vector[0]), vector), value)
            self._indexes[at] = (index, len(self._known))
        return index.get((type(values[0]), values))

    def _atoms(self) -> list[Expr]:
        """Integer symbols first, then what was seen, the latest first."""
        kinds = self.table.kinds
        symbols: list[Expr] = [s for s in self.table.symbols if kinds[s] == "int"]
        products = [a * b for i, a in enumerate(symbols[:4]) for b in symbols[i:4]]
        others = [e for e in reversed(self._known) if not isinstance(e, Sym)]
        return list(dict.fromkeys(symbols + products + others))[:_ATOMS]

    def _derive(self, values: tuple[int, ...], at: tuple[int, ...], rough_ok: bool) -> Found | None:
        atoms = [(atom, self._values(atom, at)) for atom in self._atoms()]
        simple = self._simple(values, at, atoms)
        if simple is not None:
            return simple, None
        for atom, vector in atoms:  # products
            if all(b and a % b == 0 for a, b in zip(values, vector)):
                rest = self._simple(tuple([a // b for a, b in zip(values, vector)]), at, atoms)  # type: ignore[misc]
                if rest is not None:
                    return atom * rest, None
        for atom, vector in atoms:  # sums
            for sign in (1, -1):
                less: Any = tuple([a - sign * b for a, b in zip(values, vector)])
                rest = self._simple(less, at, atoms)
                if rest is not None:
                    return rest + sign * atom, None
        pair = self._two_symbols(values, at)
        if pair is not None:
            return pair, None
        for atom, vector in atoms:
            found = self._rational(values, atom, vector, rough_ok)
            if found is not None:
                return found
        return self._quotient(values, at, atoms, rough_ok)

    def _simple(self, values: tuple[int, ...], at: tuple[int, ...], atoms: Any) -> Expr | None:
        """A constant, a known expression, or an affine one of one atom."""
        if all(value == values[0] for value in values):
            return Const(values[0])
        known = self._lookup(values, at)
        if known is not None:
            return known
        for atom, vector in atoms:
            found = _affine(values, vector)
            if found is not None and found[0].denominator == 1 and found[1].denominator == 1:
                slope, offset = found
                if abs(slope) < 1 << 31:
                    made: Expr = atom * int(slope) + int(offset)
                    return made
        return None

    def _two_symbols(self, values: tuple[int, ...], at: tuple[int, ...]) -> Expr | None:
        """`p*a + q*b + c` for two symbols."""
        symbols = [s for s in self.table.symbols if self.table.kinds[s] == "int"]
        for i, a in enumerate(symbols):
            for b in symbols[i + 1 :]:
                coefficients = _plane(values, self._values(a, at), self._values(b, at))
                if coefficients is not None:
                    p, q, c = coefficients
                    return a * p + b * q + c
        return None

    def _rational(self, values: tuple[int, ...], atom: Expr, vector: Any, rough_ok: bool) -> Found | None:
        """`(p*atom + b) / q`: exact where only congruent values are known, else with the floor pinned down."""
        found = _affine(values, vector)
        if found is not None:
            slope, offset = found
            divisor = slope.denominator
            if 1 < divisor <= _DIVISORS and (offset * divisor).denominator == 1:
                numerator = atom * slope.numerator + int(offset * divisor)
                return numerator // divisor, Assumption(numerator, divisor)
            return None
        if not rough_ok:
            return None
        spread = max(range(1, len(vector)), key=lambda i: abs(vector[i] - vector[0]))
        run = vector[spread] - vector[0]
        if not isinstance(run, int) or run == 0:
            return None
        rise = values[spread] - values[0]
        for divisor in range(2, 17):
            nearest = (2 * rise * divisor + run) // (2 * run)
            if abs(nearest * run - rise * divisor) <= 2 * divisor:
                return _floor(values, atom, vector, nearest, divisor)
        return None

    def _quotient(self, values: tuple[int, ...], at: tuple[int, ...], atoms: Any, rough_ok: bool) -> Found | None:
        """`known / known`, exact."""
        for atom, vector in atoms:
            if any(v == 0 or a % v for a, v in zip(vector, values)):
                continue
            rest = tuple([a // v for a, v in zip(vector, values)])
            if all(value == rest[0] for value in rest):
                if rest[0] > 1:
                    return atom // rest[0], Assumption(atom, rest[0])
                continue
            divisor = self._simple(rest, at, atoms)
            if divisor is not None:
                made = atom // divisor
                if not isinstance(made, FloorDiv):
                    return made, None
        return None


def _affine(values: tuple[int, ...], vector: Any) -> tuple[Fraction, Fraction] | None:
    """(slope, offset) with `values == slope * vector + offset` everywhere."""
    other = next((i for i in range(1, len(vector)) if vector[i] != vector[0]), None)
    if other is None or len(set(vector)) < 3 or not all(isinstance(v, int) for v in vector):
        return None
    rise, run = values[other] - values[0], vector[other] - vector[0]
    if rise == 0 or not all((a - values[0]) * run == rise * (b - vector[0]) for a, b in zip(values, vector)):
        return None
    slope = Fraction(rise, run)
    return slope, values[0] - slope * vector[0]


def _floor(values: tuple[int, ...], atom: Expr, vector: Any, slope: int, divisor: int) -> Found | None:
    """`(slope*atom + b) // divisor`, where the values leave exactly one `b` (up to what changes nothing)."""
    low = max(divisor * a - slope * b for a, b in zip(values, vector))
    high = min(divisor * a - slope * b for a, b in zip(values, vector)) + divisor - 1
    if low != high or slope == 0:
        return None
    made = (atom * slope + low) // divisor
    return made, None


def _plane(values: tuple[int, ...], a: Any, b: Any) -> tuple[int, int, int] | None:
    """Integers (p, q, c) with `values == p*a + q*b + c` everywhere."""
    n = len(values)
    if n < 4:
        return None  # three points always lie in a plane
    for i in range(1, n):
        for j in range(i + 1, n):
            a1, b1, v1 = a[i] - a[0], b[i] - b[0], values[i] - values[0]
            a2, b2, v2 = a[j] - a[0], b[j] - b[0], values[j] - values[0]
            det = a1 * b2 - a2 * b1
            if det == 0:
                continue
            p, q = v1 * b2 - v2 * b1, a1 * v2 - a2 * v1
            if p % det or q % det:
                return None
            p, q = p // det, q // det
            c = values[0] - p * a[0] - q * b[0]
            return (p, q, c) if all(p * x + q * y + c == v for x, y, v in zip(a, b, values)) else None
    return None
