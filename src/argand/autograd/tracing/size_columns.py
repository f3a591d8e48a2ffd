"""Sizes to trace a graph at, so that the numbers in its traces tell which expressions of the sizes they are.

Two rows are enough for numbers that are multiples, sums and products of what capture knows (`two`), four for others,
and six where sizes are divided and rounded.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import gcd, lcm
from typing import Any

from argand.graph.sizes.expr import Expr, Mod, Sym, as_int, free_symbols

ROWS = 4
MORE_ROWS = 6  # where sizes are divided and rounded
_GAPS = (151, 163, 173, 181, 193, 149, 157, 167, 179, 191)  # primes
_FACTORS = ((2, 3, 5, 4, 7, 6), (5, 2, 3, 9, 4, 7), (3, 7, 2, 5, 8, 4), (7, 5, 4, 3, 2, 8), (4, 9, 7, 2, 3, 5))
_FAR = 1 << 16  # how far from the call's number others are looked for: it may be one of 2 ** 60
_MAX_MODULUS = 64
_DIVISORS = (1, 2, 3, 4, 5, 6, 7, 8, 14, 16, 32)


def in_step(one: list[Any], two: list[Any]) -> bool:
    """Whether one column is an affine function of the other, so that they could not be told apart."""
    (a, b, c), (x, y, z) = one[:3], two[:3]
    return bool((b - a) * (z - x) == (c - a) * (y - x)) and x != y


def moduli(exprs: Iterable[Any]) -> dict[Sym, int]:
    """What sizes are divided by where a remainder is asked: the least common multiple, for each symbol."""
    steps: dict[Sym, int] = {}
    pending = [expr for expr in exprs if isinstance(expr, Expr) and expr.has_divmod]
    while pending:
        for atom in {atom for monomial, _ in pending.pop().poly for atom in monomial}:
            pending += [part for part in atom.args if isinstance(part, Expr)]
            divisor = as_int(atom.args[1]) if isinstance(atom, Mod) else None
            for sym in free_symbols(atom) if divisor and divisor <= _MAX_MODULUS else ():
                steps[sym] = lcm(steps.get(sym, 1), divisor or 1)
    return {sym: step for sym, step in steps.items() if step <= _MAX_MODULUS}


def chosen(
    hint: int, low: int, high: int, kind: str, number: int, used: set[int], modulus: int = 1
) -> list[int] | None:
    """Different sizes, whose halves, quarters, ... are odd and even, so that rounded quotients can be told apart.

    Of the kind "remainders", they leave that of the hint when divided by `modulus`.
    """
    top = min(max(2 * abs(hint), hint + 250), hint + _FAR)
    if kind == "multiples":
        column = [hint * factor for factor in _FACTORS[number % len(_FACTORS)]]
        return column if all(low <= n <= high for n in column) and hint > 1 else None
    if kind in ("congruent", "remainders"):
        step = modulus if kind == "remainders" else gcd(hint, 16) if hint else 1
        room = [n for n in range(hint + step, min(high, hint + 40 * step) + 1, step) if n not in used]
        room = room or [n for n in range(max(low, hint - 40 * step), hint, step) if n not in used]
    elif kind == "above":
        room = [n for n in range(hint + 1, min(high, top) + 1) if n not in used]
    else:
        room = [n for n in range(max(low, hint // 2, hint - _FAR), hint) if n not in used]
        if len(room) < 16:  # a small size has no room below: its values lie above
            room = [n for n in range(hint + 1, min(high, top) + 1) if n not in used]
    if len(room) < MORE_ROWS:
        return None
    chooser = random.Random(1000 * number + hint)
    gap = _GAPS[number % len(_GAPS)]

    def sample() -> list[int]:
        firsts = [chooser.choice(room) for _ in range(16)] if kind in ("above", "below") else []
        pair = next(([n, n + gap] for n in firsts if n + gap <= room[-1] and n + gap not in used), [])
        return [*pair, *[n for n in chooser.sample(room, MORE_ROWS) if n not in pair]][:MORE_ROWS]

    return max((sample() for _ in range(40)), key=lambda column: (column[1] - column[0] == gap, _variety(column)))


def _variety(column: list[int]) -> tuple[int, int]:
    """How well a column tells rounded quotients apart: by all remainders of small divisors first.

    `(n + 1) // 2` and `2 * (n // 4) + 1`, say, are equal for every n that leaves 1 or 2 when divided by 4.
    """
    variety = sum(len({n % divisor for n in column}) for divisor in _DIVISORS)
    for divisor in _DIVISORS:
        variety += len({n // divisor % 2 for n in column[:ROWS]}) + len({n // divisor % 3 for n in column})
    return sum(len({n % divisor for n in column}) for divisor in (2, 3, 4)), variety


def two(columns: Sequence[Sequence[int]]) -> bool:
    """Whether the first two rows show which numbers are multiples, sums and products of sizes.

    The gaps between a symbol's sizes are large primes, other ones for other symbols. So a remainder is not the same in
    both rows, unless it is one of division by the gap, and `p * ((n + q) // d)` is no multiple of n and no `n + c`: the
    one needs a p that the gap divides, the other equal remainders. Two sums `p*a + q*b + c` that are equal in both rows
    differ in a factor by at least a gap.
    """
    gaps = [abs(column[1] - column[0]) for column in columns]
    return all(gap in _GAPS for gap in gaps) and len(set(gaps)) == len(gaps)
