"""Integer index expressions with simplification under known ranges (our own: importing sympy costs half a second).

An expression is a polynomial with integer coefficients over atoms: loop variables (`Var`), size symbols (`Sym`),
`FloorDiv` and `Mod` of expressions. Every expression is kept in one normal form (products expanded, like terms
collected, terms sorted) and interned, so that equal expressions are one object: comparing and hashing cost nothing.

Operators build expressions: `8 * i + j`, `e // 4`, `e % 4` (Python semantics). `e == 3` is true for `Const(3)`.
Loop variables run over `range(size)`; a `Sym` is at least its `minimum`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from typing import Any, Final

from argand.graph.sizes.expr_nodes import (
    ONE,
    ZERO,
    Add,
    Const,
    Expr,
    ExprLike,
    FloorDiv,
    Mod,
    Monomial,
    Mul,
    Sym,
    Var,
    add,
    as_expr,
    as_int,
    floor_divide,
    from_poly,
    minimum_over_symbols,
    modulo,
    multiply,
    positive,
    product,
    split_exact,
    sum_of,
)
from argand.graph.sizes.intervals import UNBOUNDED, Interval, interval

__all__ = [
    "ONE", "ZERO", "Add", "Const", "Expr", "ExprLike", "FloorDiv", "Mod", "Mul", "Ranges", "Simplifier", "Sym", "Var",
    "add", "as_expr", "as_int", "bounds", "coefficient", "evaluate", "exact_divide", "free_symbols", "free_vars",
    "is_natural", "multiply", "product", "simplify", "substitute", "sum_of", "to_c",
]  # fmt: skip

Ranges = Mapping[Var, Expr]


def free_vars(expr: Expr) -> frozenset[Var]:
    """The loop variables (and `indirect` results) that occur in `expr`."""
    return frozenset(atom for atom in expr.free if isinstance(atom, Var))


def free_symbols(expr: Expr) -> frozenset[Sym]:
    """The size symbols that occur in `expr`."""
    return frozenset(atom for atom in expr.free if isinstance(atom, Sym))


def coefficient(expr: Expr, var: Expr) -> Expr | None:
    """What `expr` grows by when `var` grows by one; None when `expr` is not linear in `var`.

    A variable that does not occur has coefficient 0.
    """
    if var not in expr.free:
        return ZERO
    if not expr.has_divmod:  # nearly always: one term is the variable times an integer
        of_var = [(monomial, scale) for monomial, scale in expr.poly if var in monomial]
        if len(of_var) == 1 and len(of_var[0][0]) == 1:
            return Const(of_var[0][1])
    terms: dict[Monomial, int] = {}
    for monomial, scale in expr.poly:
        count = monomial.count(var)
        if count > 1 or any(var in atom.free for atom in monomial if atom is not var):
            return None
        if count:
            rest = tuple(atom for atom in monomial if atom is not var)
            terms[rest] = terms.get(rest, 0) + scale
    return from_poly(terms)


def substitute(expr: Expr, mapping: Mapping[Any, ExprLike]) -> Expr:
    """`expr` with variables and symbols replaced, all at once."""
    if expr.free.isdisjoint(mapping):
        return expr
    memo: dict[Expr, Expr] = {key: as_expr(value) for key, value in mapping.items()}
    return _rebuild(expr, memo)


def _rebuild(expr: Expr, memo: dict[Expr, Expr]) -> Expr:
    known = memo.get(expr)
    if known is not None:
        return known
    poly: dict[Monomial, int] = {}
    for monomial, scale in expr.poly:
        term: Expr = ONE
        for atom in monomial:
            new = memo.get(atom)
            if new is None:
                new = atom
                if isinstance(atom, FloorDiv):
                    new = floor_divide(_rebuild(atom.left, memo), _rebuild(atom.right, memo))
                elif isinstance(atom, Mod):
                    new = modulo(_rebuild(atom.left, memo), _rebuild(atom.right, memo))
                memo[atom] = new
            term = new if term is ONE else multiply(term, new)
        _collect(poly, term, scale)
    result = from_poly(poly)
    memo[expr] = result
    return result


def _collect(poly: dict[Monomial, int], expr: Expr, scale: int) -> None:
    """Add `scale * expr` to a sum."""
    for monomial, factor in expr.poly:
        poly[monomial] = poly.get(monomial, 0) + scale * factor


def evaluate(expr: ExprLike, env: Mapping[str, Any]) -> Any:
    """The value of `expr`; `env` gives a value (an int, or a tensor or array of them) to each name in it."""
    total: Any = 0
    if isinstance(expr, int):
        return expr
    for monomial, scale in expr.poly:
        term: Any = scale
        for atom in monomial:
            if isinstance(atom, (Var, Sym)):
                value = env[atom.name]
            elif isinstance(atom, FloorDiv):
                value = evaluate(atom.left, env) // evaluate(atom.right, env)
            else:
                value = evaluate(atom.args[0], env) % evaluate(atom.args[1], env)
            term = value if isinstance(term, int) and term == 1 else term * value
        total = term if isinstance(total, int) and total == 0 else total + term
    return total


def exact_divide(value: Expr, by: Expr) -> Expr | None:
    """`value / by` when that is certainly exact."""
    if by == 0:
        return None
    quotient = value // by
    return quotient if quotient * by is value else None


_C_TYPES: Final = ("i8", "i16", "i32", "i64")  # of the generated source; variables may be called so, too


@lru_cache(maxsize=1 << 14)
def to_c(expr: ExprLike) -> str:
    """C source of `expr`; `/` and `%` of C's, which round towards 0, only for operands that are not negative."""
    if isinstance(expr, int):
        return _c_int(expr)
    if isinstance(expr, Const):
        return _c_int(expr.value)
    if isinstance(expr, (FloorDiv, Mod)):
        if not (is_natural(expr.left) and is_natural(expr.right)):
            name = "floor_div_i64" if isinstance(expr, FloorDiv) else "floor_mod_i64"
            return f"{name}({to_c(expr.left)}, {to_c(expr.right)})"
        return f"({_c_factor(expr.left)} {'/' if isinstance(expr, FloorDiv) else '%'} {_c_factor(expr.right)})"
    if isinstance(expr, Mul):
        return "*".join(_c_factor(arg) for arg in expr.args)
    if isinstance(expr, Add):
        return " + ".join(to_c(arg) for arg in expr.args).replace("+ -", "- ")
    return f"{expr}_" if isinstance(expr, Var) and expr.name in _C_TYPES else str(expr)


def is_natural(expr: Expr) -> bool:
    """Whether `expr` is never negative: nothing is subtracted, and what it is made of is never negative; loop variables
    are not, nor are remainders of what is not."""
    for monomial, scale in expr.poly:
        if scale < 0:
            return False
        for atom in monomial:
            if isinstance(atom, Sym):
                if atom.minimum is None or atom.minimum < 0:
                    return False
            elif not isinstance(atom, Var):
                if not all(is_natural(arg) for arg in (atom.args[1:] if isinstance(atom, Mod) else atom.args)):
                    return False
    return True


def _c_int(value: int) -> str:
    return str(value) if abs(value) < 1 << 31 else f"{value}LL"


def _c_factor(expr: Expr) -> str:
    text = to_c(expr)
    return f"({text})" if isinstance(expr, (Add, Mul)) else text


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """`expr` simplified, given that each variable `v` of `ranges` is in `range(ranges[v])`."""
    if not expr.has_divmod:
        return expr
    return Simplifier(ranges).simplify(expr)


def bounds(expr: Expr, ranges: Ranges) -> tuple[int | None, int | None]:
    """Least and greatest value (inclusive) that interval arithmetic proves; None where it proves nothing."""
    return Simplifier(ranges).bounds(expr)


class Simplifier:
    """Simplifies under one set of ranges, remembering what it has done. `ranges` may grow, not change.

    Arguments:
        ranges: size of each variable: `v` is in `range(ranges[v])`. Variables that are missing may be anything.
    """

    __slots__ = ("_bounds", "_memo", "ranges")

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self._memo: dict[Expr, Expr] = {}
        self._bounds: dict[Expr, Interval] = {}

    def simplify(self, expr: Expr) -> Expr:
        """An equal expression over the ranges, simpler or the same."""
        if not expr.has_divmod:
            return expr
        simpler = self._memo.get(expr)
        if simpler is None:
            simpler = expr
            for _ in range(4):
                before, simpler = simpler, self._once(simpler)
                if simpler is before:
                    break
            self._memo[expr] = simpler
        return simpler

    def _once(self, expr: Expr) -> Expr:
        poly: dict[Monomial, int] = {}
        for monomial, scale in expr.poly:
            term: Expr = ONE
            for atom in monomial:
                new = self._atom(atom) if atom.has_divmod else atom
                term = new if term is ONE else multiply(term, new)
            _collect(poly, term, scale)
        return from_poly(poly)

    def _atom(self, atom: Expr) -> Expr:
        left, right = (self.simplify(arg) for arg in atom.args)
        quotient = floor_divide(left, right) if isinstance(atom, FloorDiv) else modulo(left, right)
        if not isinstance(quotient, (FloorDiv, Mod)) or (quotient.left.has_divmod and quotient.args != (left, right)):
            return quotient
        division = isinstance(quotient, FloorDiv)
        left, right = quotient.args
        if self.between(left, right):
            return ZERO if division else left
        split = self._by_common_factor(left, right)
        if split is None:
            return quotient
        high, low, factor, rest = split
        if division:  # (g*x + y) // (g*d) = x // d for 0 <= y < g
            return floor_divide(high, rest)
        return modulo(high, rest) * factor + low  # (g*x + y) % (g*d) = g*(x % d) + y

    def _by_common_factor(self, left: Expr, right: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
        """Find `left = factor*high + low`, `right = factor*rest` with 0 <= low < factor."""
        if len(right.poly) != 1:
            return None
        (divisor,) = right.poly
        tried = set()
        for monomial, scale in left.poly:
            number = gcd(scale, divisor[1])
            shared = tuple(atom for atom in divisor[0] if atom in monomial) if isinstance(right, Mul) else ()
            factor = from_poly({shared: number})
            if factor is ONE or factor in tried or not monomial:
                continue
            tried.add(factor)
            rest, remainder = split_exact(right, factor)
            high, low = split_exact(left, factor)
            low_expr = from_poly(low)
            if not any(remainder.values()) and self.between(low_expr, factor):
                return from_poly(high), low_expr, factor, from_poly(rest)
        return None

    def between(self, expr: Expr, limit: Expr) -> bool:
        """Whether 0 <= expr < limit is certain."""
        low, high = self.bounds(expr)
        if low is None or low < 0:
            return False
        if isinstance(limit, Const) and high is not None:
            return high < limit.value
        top = self._top(expr)
        if top is None:
            return False
        gap = minimum_over_symbols(limit - top - 1)
        return gap is not None and gap >= 0

    def _top(self, expr: Expr) -> Expr | None:
        """A symbolic upper bound of a sum of non-negative terms."""
        total: Expr = ZERO
        for monomial, scale in expr.poly:
            if scale < 0 and monomial:
                return None
            term: Expr = Const(scale)
            for atom in monomial:
                if isinstance(atom, Var):
                    size = self.ranges.get(atom)
                    if size is None:
                        return None
                    term = term * (size - 1)
                elif isinstance(atom, Mod) and positive(atom.right):
                    term = term * (atom.right - 1)
                elif isinstance(atom, Sym):
                    term = term * atom
                else:
                    return None
            total = total + term
        return total

    def bounds(self, expr: Expr) -> Interval:
        """Least and greatest value (inclusive) that interval arithmetic proves; None where it proves nothing."""
        return interval(expr, self._of_atom, self._bounds)

    def _of_atom(self, atom: Sym | Var) -> Interval:
        if isinstance(atom, Sym):
            return atom.minimum, None
        size = self.ranges.get(atom)
        if size is None:
            return UNBOUNDED
        top = self.bounds(size)[1]
        return 0, None if top is None else max(top - 1, 0)
