"""Sizes to trace at: what two, three and more of them tell apart."""

from __future__ import annotations

import itertools

from argand.autograd.tracing.size_columns import chosen, two
from argand.graph.sizes.expr import Sym, evaluate
from argand.graph.sizes.fitting import Fitter

N = Sym("n", 2)


def columns():
    for hint, kind, number in itertools.product((2, 7, 64, 128, 1000), ("above", "below"), range(3)):
        column = chosen(hint, 3, 4 * hint + 256, kind, number, {64, 512})
        if column is not None:
            yield column


def test_two_rows_are_told_apart_where_there_is_room():
    usable = [two([column]) for column in columns()]
    assert sum(usable) > 12
    assert all(two([chosen(hint, 3, 1 << 40, "above", number, {64})]) for hint in (7, 1 << 23) for number in range(4))
    assert not two([[10, 20]]) and not two([[10, 161], [20, 171]]) and two([[10, 161], [20, 183]])


def test_rounded_multiples_are_no_sums_and_multiples_in_two_rows():
    for column in columns():
        if not two([column]):
            continue
        sizes = [{N: n} for n in column[:2]]
        for divisor, times, offset in itertools.product(range(2, 65), (1, 2, 3, 8, 16), (-1, 0, 1, 15)):
            values = [times * ((each[N] + offset) // divisor) for each in sizes]
            rest = [(each[N] + offset) % divisor for each in sizes]
            assert Fitter(sizes, lines=False).fit(values) is None, (column, divisor, times, offset)
            assert Fitter(sizes, lines=False).fit(rest) is None


def test_two_rows_find_sums_multiples_and_products():
    m = Sym("m", 2)
    rows = [{N: 105, m: 30}, {N: 256, m: 193}]
    for wanted in (3 * N, N + 5, N + m, N * m, 4 * N * m, 7 * m):
        assert (
            Fitter(rows, lines=False).fit([int(evaluate(wanted, {"n": row[N], "m": row[m]})) for row in rows]) is wanted
        )
    assert Fitter(rows, lines=False).fit([3 * row[N] + 5 for row in rows]) is None
    known = Fitter(rows, lines=False)
    known.learn(3 * N + 5)
    assert known.fit([3 * row[N] + 5 for row in rows]) is 3 * N + 5 and not known.divides
    known.learn(N // 2)
    assert known.fit([row[N] // 2 for row in rows]) is N // 2 and known.divides


def test_three_rows_find_no_multiples_of_what_is_no_symbol():
    rows = [{N: n} for n in (101, 150, 211)]
    square = [n * n * 3 + 5 for n in (101, 150, 211)]
    assert Fitter(rows, lines=False).fit(square) is None
    assert Fitter(rows, lines=False).fit([3 * n + 5 for n in (101, 150, 211)]) is 3 * N + 5
    assert Fitter(rows, lines=False).fit([3 * n * n for n in (101, 150, 211)]) is 3 * N * N


def test_huge_numbers_have_others_close_by():
    for hint, kind in itertools.product((1 << 31, (1 << 53) + 1, -(1 << 62)), ("above", "below", "congruent")):
        column = chosen(hint, -(1 << 63), 1 << 64, kind, 0, set())
        assert column is not None and len(set(column)) == len(column)
        assert all(abs(n - hint) <= 1 << 17 for n in column)
