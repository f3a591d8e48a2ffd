"""Symbols of one dynamic capture, and finding the expression behind a number that varies with them.

Tracing stays concrete: it runs on the sizes of the call at hand (the hints) and again on a few other assignments (the
probes). A number that is the same under all of them is a constant; one that varies is *fitted*: the expression over the
symbols whose values under all assignments (its vector) are those numbers. What cannot be fitted is specialised.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add, itemgetter, sub
from typing import Any, Literal, TypeAlias

from torch import fx

from argand.graph.python_operators import ARITHMETIC, INVERT, NEGATIVE
from argand.graph.sizes import expr as expressions
from argand.graph.sizes.expr import Expr, Sym, as_expr, free_symbols, substitute
from argand.graph.sizes.fitting import Fitter
from argand.graph.sizes.intervals import UNBOUNDED, Interval, hull
from argand.graph.sizes.relations import Bounds, Number, Relation, Value, single
from argand.quick_dataclasses import dataclass

Assignment: TypeAlias = "Mapping[Sym, Number]"
Kind: TypeAlias = Literal["int", "float"]

CONGRUENT = 2
PROBES = 4
ROUGH = (0, *range(1 + CONGRUENT, 1 + PROBES))
"""The hints and the rough probes, among all assignments: they are compared."""
LIMITS = (1 << 15, 1 << 11, 1 << 8, 1 << 5)
"""Probes stay below the first, or four times the hint; below the next ones where their product is too large."""
_RESIDUES = ((1, 2), (2, 1), (1, 11))
"""How far those of a symbol's rough probes are from the hint's: neither those of sums nor of differences of two symbols
are equal, modulo small numbers."""
_SPREAD = 5040  # divisible by everything up to 10
_TRIES = 400
_ENOUGH = 2
"""Other values that a symbol must have at least; of few, some probes have the same."""
_COMPARED = 40
"""Values for a probe among which the one is taken whose order with other symbols is newest."""
_PLACES = (37, 31, 29, 23, 19, 13, 11, 7, 5, 3)
"""Primes. A parabola modulo one has no two pairs of points that differ alike, so that of symbols whose two rough probes
are such points, no `a - b` is a constant or another `c - d`, nor is `2 * a - b` a symbol."""

FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{op.name: op.native for op in (*ARITHMETIC.values(), NEGATIVE, INVERT) if op.name != "matmul"},
    "abs": abs, "min": min, "max": max, "float": float, "int": int, "floor": math.floor, "ceil": math.ceil,
    "trunc": math.trunc, "round": round, **{fn.__name__: fn for fn in (
        math.sqrt, math.isqrt, math.cbrt, math.exp, math.exp2, math.expm1, math.log, math.log2, math.log10, math.log1p,
        math.sin, math.cos, math.tan, math.tanh, math.atan, math.erf, math.fabs, math.degrees, math.radians,
        math.sinh, math.cosh, math.asin, math.acos, math.asinh, math.erfc, math.gcd, math.lcm, math.atan2,
        math.copysign,
    )},
}  # fmt: skip
"""What a `Definition` may compute: name -> the Python function."""
DOMAIN: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("sqrt", "isqrt"), ("ge", 0)),
    **dict.fromkeys(("log", "log2", "log10"), ("gt", 0)),
    "log1p": ("gt", -1),
    **dict.fromkeys(("exp", "expm1"), ("le", 709)),  # e**710 is no float
    "exp2": ("le", 1023),
}
"""Where functions of one number do not raise."""
LARGE = 1 << 62  # whole numbers that vary stay below: guards compute in 64 bits
BOUNDED: dict[str, float] = {
    **dict.fromkeys(("sin", "cos", "tan"), sys.float_info.max),
    **dict.fromkeys(("sinh", "cosh"), 709.0),
    **dict.fromkeys(("asin", "acos"), 1.0),
    **dict.fromkeys(("int", "floor", "ceil", "trunc", "round"), float(LARGE)),
}
"""Functions of floats that raise for infinities and NaN, and how large a number they are taken of where it varies."""


def number_function(text: str) -> Callable[..., Any]:
    """The function that a lambda's text makes, in which `FUNCTIONS` have names that begin with an underscore."""
    code = compile(text, "<argand number>", "eval")  # a name that capture skips
    names: dict[str, Any] = {f"_{name}": fn for name, fn in FUNCTIONS.items()}
    function: Callable[..., Any] = eval(code, {**names, "inf": math.inf, "nan": math.nan})  # as repr() writes them
    return function


@dataclass(frozen=True, slots=True)
class Definition:
    """How a symbol that is not an input is computed: `FUNCTIONS[op](*args)`, with Python's semantics.

    Used for what expressions cannot say: floats, `min`, `max`, `sqrt`, powers, bit operations.
    """

    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """A condition of what is computed from inputs, which is so before that is computed again.

    Arguments:
        relation: the condition, of symbols of a table of an earlier attempt.
        table: computes them.
        symbols: the inputs that it depends on.
    """

    relation: Relation
    table: SymbolTable
    symbols: frozenset[Sym]


class SymbolTable:
    """The symbols of one capture.

    Fields:
        symbols: in the order in which they were made, inputs (`new`) and computed ones (`define`).
        kinds: "int" or "float".
        origins: in the user's words, what an input symbol is (`L['x'].size()[0]`).
        definitions: how computed symbols are computed, operands first.
        hints: the values of the call being captured.
        assignments: the hints and the probes.
        probes: further assignments: `probes[:2]` congruent to the hints modulo 5040 (or less where a maximum leaves no
            room), the others rough: of other residues.
        maximum: the greatest value of a symbol, where there is one.
        limit: of the probes of integers, one of LIMITS.
        bends: conditions that the hints and the rough probes are not all to be alike in.
        relations: what is guarded of the symbols, when the capture is finished.
        counts: sizes of the call are 0 or 1, as they may be or not be in others.
        fitter: finds the expressions of numbers, and what they need.
    """

    def __init__(self, limit: int = LIMITS[0], bends: Iterable[Relation] = ()) -> None:
        self.limit = limit
        self.bends = tuple(bends)
        self.symbols: list[Sym] = []
        self.kinds: dict[Sym, Kind] = {}
        self.origins: dict[Sym, str] = {}
        self.definitions: dict[Sym, Definition] = {}
        self.hints: dict[Sym, Number] = {}
        self.probes: list[dict[Sym, Number]] = [{} for _ in range(PROBES)]
        self.maximum: dict[Sym, int] = {}
        self.relations: tuple[Relation, ...] = ()
        self.counts = False
        self._defined: dict[Any, Sym] = {}
        self.assignments: tuple[dict[Sym, Number], ...] = (self.hints, *self.probes)
        self.fitter = Fitter(self.assignments)

    # ---------------------------------------------------------------- making symbols

    def new(
        self,
        name_hint: str,
        hint: Number,
        *,
        min: int | None = 2,
        max: int | None = None,
        kind: Kind = "int",
        modulus: int = 1,
        facts: Iterable[Relation | Computed] = (),
        name: str | None = None,
        above: Value = 0,
    ) -> Sym:
        """A symbol for an input.

        Arguments:
            name_hint: what it is, in the user's words.
            hint: its value in the call being captured.
            min, max: its range, inclusive; None: no limit.
            kind: "int" or "float".
            modulus: the rough probes too are congruent to the hint modulo this.
            facts: conditions that every assignment must meet, as far as their symbols are known already.
            name: default: s0, s1, ...
            above: of an integer: probes are no less than this.

        Raises:
            ValueError: no assignment meets the facts, or the range leaves no room to vary.
        """
        number = len(self.symbols) - len(self.definitions)
        sym = Sym(name or f"s{number}", min if kind == "int" else None)
        self.kinds[sym] = kind
        self.hints[sym] = hint
        if max is not None:
            self.maximum[sym] = max
        try:
            self._choose(sym, hint, min, max, modulus, tuple(facts), number, above)
        except ValueError:
            for assignment in self.assignments:
                assignment.pop(sym, None)
            raise
        self.symbols.append(sym)
        self.origins[sym] = name_hint
        self.fitter.learn(sym)
        return sym

    def observed(
        self, name: str, values: Sequence[Number], origin: str, *, low: int | None, high: int | None, kind: Kind
    ) -> Sym:
        """A symbol for a number that depends on data: `values` (at the hints and the probes) stand in for it."""
        sym = Sym(name, low)
        self.kinds[sym] = kind
        for assignment, value in zip(self.assignments, values):
            assignment[sym] = value
        if high is not None:
            self.maximum[sym] = high
        self.symbols.append(sym)
        self.origins[sym] = origin
        self.fitter.learn(sym)
        return sym

    def _choose(
        self,
        sym: Sym,
        hint: Number,
        low: int | None,
        high: int | None,
        modulus: int,
        facts: Any,
        number: int,
        above: Value,
    ) -> None:
        for index, probe in enumerate(self.probes):
            taken = {self.hints[sym], *(p[sym] for p in self.probes if sym in p)}
            least, first = (self.evaluate(above, values) for values in (probe, self.hints))
            low = 0 if above else low
            best: list[tuple[int, Number]] = []
            steps = self._steps(index)
            near, last = self._near(sym, hint, low, high, modulus, index)
            usual = _candidates(hint - first, low, high, modulus, index, number, self.kinds[sym], self.limit)
            for value in itertools.chain(near, (value + least if above else value for value in usual), last):
                if value in taken:
                    continue
                probe[sym] = value
                if all(self._meets(fact, probe) is not False for fact in facts if sym in fact.symbols):
                    best.append((self._alike(sym, index, steps), value))
                    if not best[-1][0] or len(best) == _COMPARED:
                        break
            if best:
                probe[sym] = min(best, key=itemgetter(0))[1]
            else:
                others = [earlier[sym] for earlier in self.probes[:index]]
                if (
                    len(others) < _ENOUGH
                    or modulus > 1
                    or self._has_few()
                    or not all(map(_is_limit, [f for f in facts if sym in f.symbols]))
                ):
                    raise ValueError(f"no other value of {sym} (now {hint}) meets what is known of it")
                probe[sym] = others[index % _ENOUGH]  # there are no more: every value that it may have is tried

    def _near(
        self, sym: Sym, hint: Number, low: int | None, high: int | None, modulus: int, index: int
    ) -> tuple[list[Number], list[Number]]:
        """Values for a rough probe: what is beside bends, for the last one, and, of integers, beside other symbols."""
        bends = _beside(sym, self.bends) if index == PROBES - 1 else ()
        if index < CONGRUENT or self.kinds[sym] != "int":
            return list(bends), []
        others = [self.probes[index][other] for other in self._steps(index)]
        beside = [int(n - (n - hint) % modulus + modulus * step) for step in (29, -31, 7, -5, 1, -1) for n in others]
        least, most = -self.limit if low is None else low, self.limit if high is None else high
        fits = [value for value in bends if least <= value <= most and (value - hint) % modulus == 0]
        return fits, [value for value in beside if least <= value and (high is None or value <= high)]

    def _steps(self, index: int) -> dict[Sym, tuple[int, ...]]:
        """How far the integers moved from the hint, at each rough probe up to one."""
        others = [sym for sym in self.symbols if self.kinds[sym] == "int" and sym not in self.definitions]
        return {sym: self._moved(sym, index) for sym in others} if index >= CONGRUENT else {}

    def _moved(self, sym: Sym, index: int) -> tuple[int, ...]:
        hint = int(self.hints[sym])
        return tuple([int(probe[sym]) - hint for probe in self.probes[CONGRUENT : index + 1]])

    def _alike(self, sym: Sym, index: int, steps: Mapping[Sym, tuple[int, ...]]) -> int:
        """How many other symbols a new one equals at a rough probe, or, when it has its last one, is less than at no
        assignment, or more than at none: what depends on their order would not be seen to. So it is with one, or the
        sum or difference of two, that it goes in step with: what is between them would be taken for a constant.

        Arguments:
            steps: of the other symbols, up to this probe.
        """
        last = index == PROBES - 1
        alike = 0
        for bend in self.bends if last else ():
            if sym in bend.symbols:
                sides = {self.holds(bend, self.assignments[place]) for place in ROUGH}
                alike += 3 * (len(sides) == 1 and None not in sides)
        if index < CONGRUENT or self.kinds[sym] != "int":
            return alike
        own, first, moves = self._moved(sym, index), int(self.hints[sym]), set(steps.values())
        alike += 4 * _in_step(own, moves)
        for other, step in steps.items():
            gap = first - int(self.hints[other])
            gaps = [gap, *[gap + mine - its for mine, its in zip(own, step)]]
            alike += 2 * (not gaps[-1]) + (last and not min(gaps) < 0 < max(gaps))
            if last:
                alike += _in_step(tuple(map(sub, own, step)), moves) + _in_step(tuple(map(add, own, step)), moves)
        return alike

    def _has_few(self) -> bool:
        """Whether a symbol has few values. Those of a second one would go in step with them."""
        inputs = [sym for sym in self.symbols if sym not in self.definitions]
        return any(len({probe[sym] for probe in self.probes}) < PROBES for sym in inputs)

    def _meets(self, fact: Relation | Computed, assignment: Assignment) -> bool | None:
        if isinstance(fact, Relation):
            return self.holds(fact, assignment)
        return fact.table.holds(fact.relation, {sym: assignment[sym] for sym in fact.symbols if sym in assignment})

    def define(self, op: str, *args: Value) -> Sym:
        """The symbol for `FUNCTIONS[op](*args)`; the same one for the same arguments.

        Raises:
            ArithmeticError, ValueError, TypeError: the function does, under one of the assignments.
        """
        key = (op, *((type(arg), arg) for arg in args))
        known_symbol = self._defined.get(key)
        if known_symbol is not None:
            return known_symbol
        function = FUNCTIONS[op]
        values = [function(*(self.evaluate(arg, a) for arg in args)) for a in self.assignments]
        kind: Kind = "float" if isinstance(values[0], float) else "int"
        low = 0 if kind == "int" and op in ("min", "max", "abs") and all(v >= 0 for v in values) else None
        if op in ("min", "max"):
            low = functools.reduce(hull, map(self.bounds, args))[0]
        sym = Sym(f"{'f' if kind == 'float' else 'd'}{len(self.definitions)}", low)
        self.kinds[sym] = kind
        self.definitions[sym] = Definition(op, args)
        for assignment, value in zip(self.assignments, values):
            assignment[sym] = value
        self.symbols.append(sym)
        self._defined[key] = sym
        self.fitter.learn(sym)
        return sym

    # ---------------------------------------------------------------- values

    def evaluate(self, value: Value, assignment: Assignment) -> Number:
        """The value under an assignment of the input symbols (computed symbols are computed when missing).

        Raises:
            KeyError: a symbol without value.
            ArithmeticError, ValueError: the arithmetic does (division by zero).
        """
        if not isinstance(value, Expr):
            return value
        if isinstance(value, Sym):
            return self._symbol(value, assignment)
        env = {sym.name: self._symbol(sym, assignment) for sym in free_symbols(value)}
        result: Number = expressions.evaluate(value, env)
        return result

    def _symbol(self, sym: Sym, assignment: Assignment) -> Number:
        value = assignment.get(sym)
        if value is None:
            definition = self.definitions.get(sym)
            if definition is None:
                raise KeyError(sym.name)
            return FUNCTIONS[definition.op](*(self.evaluate(arg, assignment) for arg in definition.args))
        return value

    def vector(self, value: Value) -> tuple[Number, ...]:
        """The values under the hints and under each probe."""
        return self.fitter.vector(value)

    def holds(self, relation: Relation, assignment: Assignment) -> bool | None:
        """Whether the condition holds; None when a symbol in it has no value yet, or the arithmetic fails."""
        try:
            left, right = self.evaluate(relation.left, assignment), self.evaluate(relation.right, assignment)
        except (KeyError, ArithmeticError, ValueError):
            return None
        return relation.compare(left, right)

    def parts(self, relation: Relation) -> tuple[bool, list[Relation]]:
        """What an inequality of the least or greatest of two integers says of each of the two, and whether both of that
        must hold; nothing of other conditions."""
        sides = (relation.left, relation.right)
        kinds = {self.kinds.get(sym) for sym in relation.symbols}
        if relation.op not in ("lt", "le", "gt", "ge") or relation.has_float or kinds != {"int"}:
            return False, []
        upper, gap = relation.op in ("lt", "le"), relation.gap
        for monomial, scale in gap.poly:
            sym = monomial[0] if len(monomial) == 1 else None
            definition = self.definitions.get(sym) if isinstance(sym, Sym) else None
            if not isinstance(sym, Sym) or definition is None or definition.op not in ("min", "max"):
                continue
            if sym in (gap - sym * scale).free:
                continue
            both = (scale > 0) == ((definition.op == "max") == upper)
            chosen = [{sym: as_expr(arg)} for arg in definition.args if not isinstance(arg, float)]
            left, right = (as_expr(side) for side in sides if not isinstance(side, float))
            return both, [Relation(relation.op, substitute(left, one), substitute(right, one)) for one in chosen]
        return False, []

    def bounds(self, value: Value) -> Interval:
        """Least and greatest value that the symbols' ranges prove; None where they prove nothing."""
        if not isinstance(value, Expr):
            return (value, value) if isinstance(value, int) else UNBOUNDED
        return Bounds(self.kinds, self.maximum).interval(value)

    def inputs(self, value: Value) -> frozenset[Sym]:
        """The input symbols that the value depends on, through definitions too."""
        if not isinstance(value, Expr):
            return frozenset()
        inputs: set[Sym] = set()
        for sym in free_symbols(value):
            definition = self.definitions.get(sym)
            if definition is None:
                inputs.add(sym)
            else:
                for arg in definition.args:
                    inputs |= self.inputs(arg)
        return frozenset(inputs)

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        values: Sequence[Number],
        *,
        at: Sequence[int] | None = None,
        measured: Callable[[], Expr | None] = lambda: None,
    ) -> int | Expr | None:
        """The expression with these values under the assignments, or those `at` some of them (0 is the hint).

        Arguments: as for `Fitter.fit`.

        Returns:
            The expression, a number when nothing varies; None when there is none (also for a float that varies and is
            no symbol's value).
        """
        return self.fitter.fit(values, at, measured)

    def know(self, value: Expr) -> None:
        """Let `fit` find this expression by its vector."""
        self.fitter.learn(value)

    def __str__(self) -> str:
        lines = []
        for sym in self.symbols:
            definition = self.definitions.get(sym)
            if definition is None:
                lines.append(f"{sym} = {self.origins[sym]} (now {self.hints[sym]})")
            else:
                lines.append(f"{sym} = {definition.op}({', '.join(map(str, definition.args))})")
        return "\n".join(lines)


def is_dynamic(gm: fx.GraphModule) -> bool:
    """Capture gave the graph symbols for some of its sizes."""
    table = gm.meta.get("symbols")
    return table is not None and any(sym not in table.definitions for sym in table.symbols)


def _candidates(
    hint: Number, low: int | None, high: int | None, modulus: int, index: int, number: int, kind: Kind, limit: int
) -> Iterable[Number]:
    """Values for one probe of a new symbol, the preferred ones first."""
    if kind == "float":
        sign = -1 if index % 2 else 1  # what is computed of both signs is no other number's formula
        for turn in range(_TRIES):
            value = sign * (abs(hint) + 1.0) * math.sqrt(2 + 7 * number + 3 * index + 61 * turn) / (1 + index)
            yield value
            yield -value
        return
    hint = int(hint)
    if low is None and high is None:
        yield from _of_both_signs(hint, modulus, index, number, limit)
        return
    low = -limit if low is None else low
    top = max(limit, 4 * hint if limit == LIMITS[0] else hint + limit)
    top = top if high is None else min(high, top)
    if index < CONGRUENT:
        for spread in (_SPREAD, 720, 240, 120, 60, 24, 12, 8, 4, 2, 1):
            step = math.lcm(spread, modulus)
            for turn in range(12):
                yield from _within(hint + step * (1 + (2 * number + index + turn) % 7 + turn // 7), low, top)
            yield from _within(hint - step * (1 + index), low, top)
    residue = _RESIDUES[number % len(_RESIDUES)][index - CONGRUENT] if index >= CONGRUENT else index - CONGRUENT + 1
    room = max((top - hint) // modulus, 0)
    # residues h, h + 1, h + 2, say: not all equal modulo any number up to 8, nor its multiples
    spread = next((spread for spread in (840, 12) if spread * 12 < room), 1)
    places = next((prime for prime in _PLACES if (prime + 1) * spread <= room), 1)
    for turn in range(_TRIES):
        place = number + 2 + 5 * turn
        step = spread * (1 + (place if index == CONGRUENT else -1 - (place - 2) ** 2) % places) + residue
        yield from _within(hint + modulus * step, low, top)
    # whatever is left, of a narrow range: not all near the hint, where quotients are alike
    for turn in (*((21, 13, 8, 5, 3) if index >= CONGRUENT else ()), *range(1, _TRIES)):
        for sign in (1, -1) if index < PROBES - 1 else (-1, 1):
            yield from _within(hint + sign * modulus * turn, low, top)


def _of_both_signs(hint: int, modulus: int, index: int, number: int, limit: int) -> Iterator[int]:
    """The same of an integer of any sign: of the rough ones, and of the others, one is negative."""
    step = math.lcm(_SPREAD, modulus)
    for value in _candidates(max(hint, hint % step), 0, None, modulus, index, number, "int", limit):
        yield int(value) - step * (int(value) // step * 2 + 1) if index % 2 else int(value)
    yield from (hint % modulus + modulus * (-turn if index % 2 else turn - 1) for turn in range(1, _TRIES))


def _beside(sym: Sym, bends: Iterable[Relation]) -> Iterator[Number]:
    """Values of a symbol on both sides of where conditions on it alone change."""
    for bend in bends:
        sides = (bend.left, bend.right)
        floats = [side for side in sides if isinstance(side, float)]
        bound = single(bend)
        if floats and sym in sides:
            yield from (floats[0] + step * (abs(floats[0]) + 1.0) for step in (-0.37, 0.43))
        elif bound is not None and bound[0] == sym:
            limit = bound[1][0] if bound[1][1] is None else bound[1][1]
            yield from (limit + step for step in (-1, 1, 0, -2, 2) if limit is not None)


def _in_step(step: tuple[int, ...], steps: set[tuple[int, ...]]) -> bool:
    """Whether something moves as one of others does, or as much to the other side."""
    return step in steps or tuple([-value for value in step]) in steps


def _is_limit(fact: Relation | Computed) -> bool:
    """Whether a condition is that a symbol is less, or more, than a number."""
    return isinstance(fact, Relation) and single(fact) is not None


def _within(value: int, low: int, top: int) -> tuple[int, ...]:
    return (value,) if low <= value <= top else ()
