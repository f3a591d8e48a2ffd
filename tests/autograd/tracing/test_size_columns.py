"""Sizes to trace at: what three, four and six of them tell apart."""

from __future__ import annotations

import itertools
from math import gcd

import pytest

from argand.autograd.tracing.size_columns import MORE_ROWS, chosen, few
from argand.graph.sizes.expr import Sym
from argand.graph.sizes.fitting import Fitter

N = Sym("n", 2)


def columns():
    for hint, kind, number in itertools.product((2, 7, 64, 128, 1000), ("above", "below"), range(3)):
        column = chosen(hint, 3, 4 * hint + 256, kind, number, {64, 512})
        if column is not None:
            yield column


def test_three_rows_have_no_common_residue():
    told = 0
    for column in columns():
        rows = few(column)
        if rows is not None:
            told += 1
            one, two, three = (column[row] for row in rows)
            assert rows[0] == 0 and gcd(two - one, three - one) == 1
    assert told > 20


def test_rounded_multiples_lie_on_no_line_through_three_rows():
    for column in columns():
        rows = few(column)
        if rows is None:
            continue
        sizes = [{N: column[row]} for row in rows]
        for divisor, times, offset in itertools.product(range(2, 17), (1, 2, 3, 8, 16), (-1, 0, 1, 15)):
            fitter = Fitter(sizes, lines=False)
            fitted = fitter.fit([times * ((each[N] + offset) // divisor) for each in sizes])
            # where a division is found, there are more traces
            assert fitted is None or fitter.rounds, (column, divisor, times, offset)


@pytest.mark.parametrize("column", [[10, 20, 30, 40, 50, 60], [64, 66, 68, 80, 90, 100], [5, 6, 7, 8, 9, 10]])
def test_sizes_in_step_or_near_each_other_are_too_few(column):
    assert len(column) == MORE_ROWS and few(column) is None


def test_three_rows_find_no_multiples_of_what_is_no_symbol():
    rows = [{N: n} for n in (101, 150, 211)]
    square = [n * n * 3 + 5 for n in (101, 150, 211)]
    assert Fitter(rows, lines=False).fit(square) is None
    assert Fitter(rows, lines=False).fit([3 * n + 5 for n in (101, 150, 211)]) is 3 * N + 5
    assert Fitter(rows, lines=False).fit([3 * n * n for n in (101, 150, 211)]) is 3 * N * N
