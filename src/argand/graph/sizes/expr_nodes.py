"""The nodes of integer index expressions and their arithmetic; `graph.sizes.expr` is the front of this module.

An expression is a polynomial with integer coefficients over atoms: loop variables (`Var`), size symbols (`Sym`),
`FloorDiv` and `Mod` of expressions. Every expression is kept in one normal form (products expanded, like terms
collected, terms sorted) and interned, so that equal expressions are one object: comparing and hashing cost nothing.

Operators build expressions: `8 * i + j`, `e // 4`, `e % 4` (Python semantics). `e == 3` is true for `Const(3)`.
Loop variables run over `range(size)`; a `Sym` is at least its `minimum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import gcd
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar
from weakref import ref

from argand._core import _C
from argand.locks import fork_safe_lock

Monomial = tuple["Expr", ...]  # atoms multiplied together, sorted; () is the constant term
Poly = tuple[tuple[Monomial, int], ...]
_E = TypeVar("_E", bound="Expr")
_text = attrgetter("_text")


class Expr:
    """Base of index expressions; immutable and interned.

    Attributes:
        poly: the expression as a sum: pairs of (atoms multiplied together, integer coefficient), sorted.
        free: the `Var`s and `Sym`s that occur in it.
        has_divmod: whether a `FloorDiv` or `Mod` occurs anywhere in it.
    """

    __slots__ = ("__weakref__", "_text", "free", "has_divmod", "poly")
    poly: Poly
    free: frozenset[Expr]
    has_divmod: bool
    _text: str
    _table: ClassVar[dict[Any, ref[Expr]]] = {}
    _room: ClassVar[int] = 1 << 16  # entries of the table; then those of expressions that are no more are dropped
    _lock: ClassVar[Any] = fork_safe_lock()

    @property
    def args(self) -> tuple[Expr, ...]:
        """Operands: terms of an Add, factors of a Mul (the constant first), the two of FloorDiv and Mod."""
        return ()

    def __add__(self, other: Expr | int) -> Expr:
        return add(self, other if isinstance(other, Expr) else Const(other))

    __radd__ = __add__

    def __sub__(self, other: Expr | int) -> Expr:
        return add(self, as_expr(other) * -1)

    def __rsub__(self, other: Expr | int) -> Expr:
        return add(as_expr(other), self * -1)

    def __mul__(self, other: Expr | int) -> Expr:
        if other.__class__ is Const:
            return _times(self, other.value)
        return multiply(self, other) if isinstance(other, Expr) else _times(self, int(other))

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return _times(self, -1)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floor_divide(self, as_expr(other))

    def __rfloordiv__(self, other: Expr | int) -> Expr:
        return floor_divide(as_expr(other), self)

    def __mod__(self, other: Expr | int) -> Expr:
        return modulo(self, as_expr(other))

    def __rmod__(self, other: Expr | int) -> Expr:
        return modulo(as_expr(other), self)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self


def _intern(cls: type[_E], key: tuple[Any, ...]) -> _E:
    """The one object for `(cls, *key)`; makes it with `cls._build` when it is new."""
    full = (cls, *key)
    known = Expr._table.get(full)
    interned: Any = None if known is None else known()
    return _C.call_locked(Expr._lock, _make, full) if interned is None else interned


def _make(full: tuple[Any, ...]) -> Any:
    known = Expr._table.get(full)
    interned: Any = None if known is None else known()
    if interned is None:
        interned = object.__new__(full[0])
        interned._build(*full[1:])
        if len(Expr._table) >= Expr._room:
            Expr._table = {key: each for key, each in list(Expr._table.items()) if each() is not None}
            Expr._room = max(1 << 16, 2 * len(Expr._table))
        Expr._table[full] = ref(interned)
    return interned


class Const(Expr):
    """An integer."""

    __slots__ = ("value",)
    value: int

    def __new__(cls, value: int) -> Const:
        return _constant(int(value))

    def _build(self, value: int) -> None:
        self.value = value
        self.poly = (((), value),) if value else ()
        self.free = frozenset()
        self.has_divmod = False
        self._text = str(value)

    def __mul__(self, other: Expr | int) -> Expr:
        if other.__class__ is Const:
            return _constant(self.value * other.value)
        return _times(other, self.value) if isinstance(other, Expr) else _constant(self.value * int(other))

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return self.value

    def __reduce__(self) -> tuple[Any, ...]:
        return (Const, (self.value,))


@lru_cache(maxsize=1 << 12)
def _constant(value: int) -> Const:
    return _intern(Const, (value,))


class Var(Expr):
    """A loop variable, or the result of an `indirect` statement."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Var:
        return _intern(cls, (name,))

    def _build(self, name: str) -> None:
        self.name = name
        self._text = name
        _build_atom(self, frozenset((self,)), False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Var, (self.name,))


class Sym(Expr):
    """A size symbol, known when the kernel is called.

    Arguments:
        name: as printed, e.g. "s0".
        minimum: its least possible value; None when it may be anything (an integer that is not a size).
    """

    __slots__ = ("minimum", "name")
    name: str
    minimum: int | None

    def __new__(cls, name: str, minimum: int | None = 1) -> Sym:
        return _intern(cls, (name, minimum))

    def _build(self, name: str, minimum: int | None) -> None:
        self.name = name
        self.minimum = minimum
        self._text = name
        _build_atom(self, frozenset((self,)), False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Sym, (self.name, self.minimum))


class _Division(Expr):
    """A division of two expressions, which is an atom."""

    __slots__ = ("left", "right")
    left: Expr
    right: Expr
    _sign: ClassVar[str]

    def __new__(cls, left: Expr, right: Expr) -> Self:
        return _intern(cls, (left, right))

    def _build(self, left: Expr, right: Expr) -> None:
        self.left, self.right = left, right
        self._text = f"({_factor(left)}{self._sign}{_factor(right)})"
        _build_atom(self, left.free | right.free, True)

    @property
    def args(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.left, self.right))


class FloorDiv(_Division):
    """`left // right`, rounded towards minus infinity. Build it with `//`."""

    __slots__ = ()
    _sign = "//"


class Mod(_Division):
    """`left % right`, with the sign of `right`. Build it with `%`."""

    __slots__ = ()
    _sign = " % "


class Mul(Expr):
    """A product of atoms, with an integer coefficient. Build it with `*`."""

    __slots__ = ()

    def _build(self, poly: Poly) -> None:
        _build_sum(self, poly)
        self._text = _term(*poly[0])

    @property
    def args(self) -> tuple[Expr, ...]:
        ((monomial, coefficient),) = self.poly
        return monomial if coefficient == 1 else (Const(coefficient), *monomial)

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_poly, (dict(self.poly),))


class Add(Expr):
    """A sum of terms, the constant last. Build it with `+`."""

    __slots__ = ()

    def _build(self, poly: Poly) -> None:
        _build_sum(self, poly)
        text = " + ".join([_term(monomial, coefficient) for monomial, coefficient in poly])
        self._text = text.replace("+ -", "- ")

    @property
    def args(self) -> tuple[Expr, ...]:
        return tuple(from_poly({monomial: coefficient}) for monomial, coefficient in self.poly)

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_poly, (dict(self.poly),))


def _build_atom(atom: Expr, free: frozenset[Expr], has_divmod: bool) -> None:
    atom.poly = (((atom,), 1),)
    atom.free = free
    atom.has_divmod = has_divmod


def _build_sum(expr: Expr, poly: Poly) -> None:
    expr.poly = poly
    atoms = [atom for monomial, _ in poly for atom in monomial]
    expr.free = frozenset().union(*(atom.free for atom in atoms))
    expr.has_divmod = any(atom.has_divmod for atom in atoms)


def _term(monomial: Monomial, coefficient: int) -> str:
    """The text of a product of atoms and an integer."""
    if not monomial:
        return str(coefficient)
    product = "*".join(map(_text, monomial))
    return product if coefficient == 1 else f"{coefficient}*{product}"


def _factor(expr: Expr) -> str:
    text = expr._text
    return f"({text})" if isinstance(expr, (Add, Mul)) or text.startswith("-") else text


def as_expr(value: Expr | int) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else Const(value)


ExprLike = Expr | int


def as_int(expr: ExprLike) -> int | None:
    """The value of a constant expression; None when it is not constant."""
    if isinstance(expr, Const):
        return expr.value
    return expr if isinstance(expr, int) else None


def _term_key(item: tuple[Monomial, int]) -> tuple[bool, list[str]]:
    return (not item[0], [*map(_text, item[0])])


def from_poly(poly: Mapping[Monomial, int]) -> Expr:
    """The expression that a sum of terms is; the sum's coefficients may be zero, its order is free."""
    items = [item for item in poly.items() if item[1]]
    if len(items) > 1:
        items.sort(key=_term_key)
    elif not items:
        return ZERO
    else:
        monomial, coefficient = items[0]
        if not monomial:
            return Const(coefficient)
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
        return _intern(Mul, (tuple(items),))
    if any(atom.has_divmod for monomial, _ in items for atom in monomial):
        joined = _recombine(dict(items))
        if joined is not None:
            return from_poly(joined)
    return _intern(Add, (tuple(items),))


def _recombine(poly: dict[Monomial, int]) -> dict[Monomial, int] | None:
    """Apply one rule k*(x % m) + k*m*(x // m) = k*x, or k*(x % m) + k*m*((x // m) % n) = k*(x % (m*n))."""
    for monomial, coefficient in poly.items():
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            others = monomial[:position] + monomial[position + 1 :]
            rest = from_poly({others: coefficient})
            quotient = floor_divide(atom.left, atom.right)
            wanted = rest * atom.right
            whole = (wanted * quotient).poly
            if len(whole) == 1 and quotient.free and poly.get(whole[0][0]) == whole[0][1]:
                return _replace(poly, (monomial, whole[0][0]), rest * atom.left)
            for other in poly:
                partner = next((a for a in other if isinstance(a, Mod) and a.left is quotient), None)
                if partner is None or other is monomial:
                    continue
                part = (wanted * partner).poly
                if len(part) == 1 and part[0][0] == other and part[0][1] == poly[other]:
                    joined = rest * modulo(atom.left, atom.right * partner.right)
                    return _replace(poly, (monomial, other), joined)
    return None


def _replace(poly: dict[Monomial, int], gone: tuple[Monomial, ...], new: Expr) -> dict[Monomial, int]:
    result = {monomial: coefficient for monomial, coefficient in poly.items() if monomial not in gone}
    for monomial, coefficient in new.poly:
        result[monomial] = result.get(monomial, 0) + coefficient
    return result


@lru_cache(maxsize=1 << 15)
def add(left: Expr, right: Expr) -> Expr:
    """`left + right`."""
    if not left.poly:
        return right
    if not right.poly:
        return left
    poly = dict(left.poly)
    for monomial, coefficient in right.poly:
        poly[monomial] = poly.get(monomial, 0) + coefficient
    return from_poly(poly)


@lru_cache(maxsize=1 << 15)
def multiply(left: Expr, right: Expr) -> Expr:
    """`left * right`, expanded."""
    poly: dict[Monomial, int] = {}
    for monomial_l, coefficient_l in left.poly:
        for monomial_r, coefficient_r in right.poly:
            monomial = monomial_l + monomial_r
            if monomial_l and monomial_r:
                monomial = tuple(sorted(monomial, key=_text))
            poly[monomial] = poly.get(monomial, 0) + coefficient_l * coefficient_r
    return from_poly(poly)


@lru_cache(maxsize=1 << 15)
def _times(expr: Expr, number: int) -> Expr:
    """`expr * number`: numbers of Python's are looked up faster than constants, whose hash is a function of Python."""
    return from_poly({monomial: coefficient * number for monomial, coefficient in expr.poly})


def sum_of(terms: Iterable[Expr]) -> Expr:
    """The sum of `terms`, collected at once."""
    poly: dict[Monomial, int] = {}
    for term in terms:
        for monomial, coefficient in term.poly:
            poly[monomial] = poly.get(monomial, 0) + coefficient
    return from_poly(poly)


def product(factors: Iterable[ExprLike]) -> Expr:
    """The product of `factors`."""
    result: Expr = ONE
    for factor in factors:
        result = result * factor
    return result


def _exact_quotient(item: tuple[Monomial, int], by: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """The term `item / by` when the division leaves no remainder whatever the atoms are."""
    monomial, coefficient = item
    divisor, scale = by
    if coefficient % scale:
        return None
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left), coefficient // scale


def split_exact(numerator: Expr, divisor: Expr) -> tuple[dict[Monomial, int], dict[Monomial, int]]:
    """Terms of `numerator` divided by `divisor` where that is exact, and the other terms."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    if len(divisor.poly) != 1:
        return whole, dict(numerator.poly)
    by = divisor.poly[0]
    constant = isinstance(divisor, Const)
    for item in numerator.poly:
        quotient = _exact_quotient(item, by)
        if quotient is not None:
            whole[quotient[0]] = quotient[1]
        elif constant and not item[0]:
            times, rest[()] = divmod(item[1], by[1])
            if times:
                whole[()] = times
        else:
            rest[item[0]] = item[1]
    return whole, rest


def _common(rest: dict[Monomial, int], divisor: int) -> int:
    common = divisor
    for monomial, coefficient in rest.items():
        if monomial:
            common = gcd(common, coefficient)
    return common


@lru_cache(maxsize=1 << 15)
def floor_divide(left: Expr, right: Expr) -> Expr:
    """`left // right`; raises ZeroDivisionError for a constant zero divisor."""
    if isinstance(right, Const):
        if right.value == 1:
            return left
        if isinstance(left, Const):
            return Const(left.value // right.value)
        if right.value <= 0:
            if right.value == 0:
                raise ZeroDivisionError(f"{left} // 0")
            return FloorDiv(left, right)
    if not left.poly:
        return ZERO
    if left is right:
        return ONE
    whole, rest = split_exact(left, right)
    if whole:
        return from_poly(whole) + floor_divide(from_poly(rest), right)
    if isinstance(right, Const):
        common = _common(rest, right.value)
        if common > 1:  # (g*x + r) // (g*d) = x // d for 0 <= r < g
            scaled = {monomial: coefficient // common for monomial, coefficient in rest.items()}
            return floor_divide(from_poly(scaled), Const(right.value // common))
    if isinstance(left, FloorDiv) and positive(left.right) and positive(right):
        return floor_divide(left.left, left.right * right)  # (x // a) // b = x // (a*b)
    if isinstance(left, Mod) and positive(left.right) and positive(right):
        if left.right is right:
            return ZERO
        outer, remainder = split_exact(left.right, right)
        if outer and not any(remainder.values()):  # (x % (a*b)) // b = (x // b) % a
            return modulo(floor_divide(left.left, right), from_poly(outer))
        if isinstance(right, Const) and isinstance(left.right, Const) and left.right.value <= right.value:
            return ZERO
    return FloorDiv(left, right)


@lru_cache(maxsize=1 << 15)
def modulo(left: Expr, right: Expr) -> Expr:
    """`left % right`; raises ZeroDivisionError for a constant zero divisor."""
    if isinstance(right, Const):
        if isinstance(left, Const):
            return Const(left.value % right.value)
        if right.value == 1:
            return ZERO
        if right.value <= 0:
            if right.value == 0:
                raise ZeroDivisionError(f"{left} % 0")
            return Mod(left, right)
    if not left.poly or left is right:
        return ZERO
    whole, rest = split_exact(left, right)
    if whole:
        return modulo(from_poly(rest), right)
    if isinstance(right, Const):
        divisor = right.value
        if any(coefficient > divisor for monomial, coefficient in rest.items() if monomial):
            return modulo(from_poly({m: c % divisor if m else c for m, c in rest.items()}), right)
        common = _common(rest, divisor)
        if common > 1:  # (g*x + r) % (g*d) = g*(x % d) + r for 0 <= r < g
            scaled = {monomial: coefficient // common for monomial, coefficient in rest.items()}
            inner = modulo(from_poly(scaled), Const(divisor // common))
            return inner * common + rest.get((), 0) % common
    if isinstance(left, Mod) and positive(left.right) and positive(right):
        outer, remainder = split_exact(left.right, right)
        if outer and not any(remainder.values()):  # (x % (a*b)) % b = x % b
            return modulo(left.left, right)
        if isinstance(right, Const) and isinstance(left.right, Const) and left.right.value <= right.value:
            return left
    return Mod(left, right)


def positive(expr: Expr) -> bool:
    """Whether `expr`, made of constants and symbols, is certainly at least 1."""
    if isinstance(expr, Const):
        return expr.value > 0
    low = minimum_over_symbols(expr)
    return low is not None and low > 0


def minimum_over_symbols(expr: Expr) -> int | None:
    """A lower bound when only symbols occur and no term has a negative coefficient but the constant."""
    total = 0
    for monomial, coefficient in expr.poly:
        if not monomial:
            total += coefficient
            continue
        if coefficient < 0:
            return None
        low = coefficient
        for atom in monomial:
            if not isinstance(atom, Sym) or atom.minimum is None or atom.minimum < 0:
                return None
            low *= atom.minimum
        total += low
    return total


ZERO = Const(0)
ONE = Const(1)
