"""How many cases of a sweep the tests try: a part of them, or all with SWEEPS=whole in the environment (CONTRIBUTING.md).

The part is the same in each run. Of op_db it is every n-th operator, of combinations as many as have each two values
together, else fewer cases of each kind.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

WHOLE: Final = os.environ.get("SWEEPS") == "whole"


def part(cases: int, divisor: int = 2) -> int:
    """How many of so many cases are tried."""
    return cases if WHOLE else -(-cases // divisor)


def combinations(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """One value of each axis: of any two axes, every two values are together in one of them. All with SWEEPS=whole."""
    axes = [list(axis) for axis in values]
    if WHOLE:
        return list(itertools.product(*axes))
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    two = {place: frozenset(itertools.combinations(enumerate(place), 2)) for place in places}
    missing = set().union(*two.values())
    chosen = []
    while missing:
        best = max(places, key=lambda place: len(two[place] & missing))  # the first of the best
        missing -= two[best]
        chosen.append(best)
    return [tuple(axis[at] for axis, at in zip(axes, place)) for place in sorted(chosen)]


def chessboard(rows: Iterable[Any], columns: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Every second pair, as fields of one colour: each value is with half of the other's. All with SWEEPS=whole."""
    pairs = itertools.product(enumerate(rows), enumerate(columns))
    return [(row, column) for (at, row), (place, column) in pairs if WHOLE or not (at + place) % 2]


def diagonal(rows: Iterable[Any], columns: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Each row with one column, the columns in turn. All pairs with SWEEPS=whole."""
    columns = list(columns)
    pairs = itertools.product(enumerate(rows), enumerate(columns))
    return [(row, column) for (at, row), (place, column) in pairs if WHOLE or at % len(columns) == place]


def in_turn(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each value of each axis in some case, as many cases as the longest axis has values. The product with SWEEPS=whole."""
    axes = [list(axis) for axis in values]
    if WHOLE:
        return list(itertools.product(*axes))
    return [tuple(axis[case % len(axis)] for axis in axes) for case in range(max(map(len, axes)))]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments of a sweep over op_db that is a program of its own: NAME ..., --every N, --gradients."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*")
    made.add_argument("--every", type=int, default=1)
    made.add_argument("--gradients", action="store_true")
    return made


def told(found: Counter[str], figures: Collection[str]) -> int:
    """Print what was found: differences, then the figures. The exit status: 1 for a difference."""
    for text, count in sorted(found.items()):
        if text not in figures:
            print(f"x{count} {text}")
    print({name: found[name] for name in figures})
    return 1 if set(found) - set(figures) else 0
