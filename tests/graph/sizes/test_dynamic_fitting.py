"""Numbers that vary with sizes, found again as expressions."""

from __future__ import annotations

import pytest

from argand.graph.sizes.expr import Sym, to_c
from argand.graph.sizes.fitting import Fitter, _rounded
from argand.graph.sizes.relations import Relation, at_least, hold, require

N, M = Sym("n", 2), Sym("m", 2)
ASSIGNMENTS = [{N: 141, M: 38}, {N: 164, M: 91}, {N: 250, M: 60}, {N: 187, M: 33}, {N: 214, M: 77}]


def values(function):
    return [function(each[N], each[M]) for each in ASSIGNMENTS]


@pytest.mark.parametrize(
    ("function", "expr"),
    [
        (lambda n, m: 7, 7),
        (lambda n, m: n, N),
        (lambda n, m: n + 3, N + 3),
        (lambda n, m: 3 * n - 4, 3 * N - 4),
        (lambda n, m: n + m, N + M),
        (lambda n, m: n - m, N - M),
        (lambda n, m: n - m + 1, N - M + 1),
        (lambda n, m: 64 * n * m, 64 * N * M),
        (lambda n, m: n * n * m, N * N * M),
        (lambda n, m: n * (m + 1), N * (M + 1)),
        (lambda n, m: n // 2, N // 2),
        (lambda n, m: (n + 1) // 2, (N + 1) // 2),
        (lambda n, m: 5 * ((n - 1) // 2), 5 * ((N - 1) // 2)),
    ],
)
def test_fit(function, expr):
    fitter = Fitter(ASSIGNMENTS)
    if "//" in str(expr):
        fitter.learn((N + 1) // 2)
        fitter.learn(N // 2)
        fitter.learn((N - 1) // 2)
    assert fitter.fit(values(function)) == expr
    assert not fitter.conditions


def test_what_has_no_simple_form_is_refused():
    assert Fitter(ASSIGNMENTS).fit(values(lambda n, m: n.bit_length() * 1000 + (n ^ m))) is None


def test_an_exact_division_is_a_condition():
    even = [{N: 16 * k} for k in (3, 5, 8)]
    fitter = Fitter(even)
    assert fitter.fit([each[N] // 2 for each in even]) == N // 2
    assert list(fitter.conditions) == [Relation("eq", N % 2)]


def test_rounding_is_refused_where_several_offsets_fit():
    """At multiples of 16, (n + q) // 16 is the same for sixteen q."""
    assert _rounded((4, 6, 9), (48, 80, 128), N, 1) is None


def test_conditions():
    conditions: dict[Relation, None] = {}
    assert at_least(N * M, 4) and not at_least(N - 3, 0)
    assert require(conditions, N, 2) and not conditions
    assert require(conditions, N - 3) and list(conditions) == [Relation("ge", N - 3)]
    assert hold(conditions, {"n": 3}) and not hold(conditions, {"n": 2})
    assert not require(conditions, -1)
    assert str(Relation("eq", N % 4)) == "(n % 4) == 0"


def test_divisions_of_what_may_be_negative_round_down_in_c():
    """C rounds towards zero: (n - m) // 2 is -1 for n = m - 1, roll's (i - 1) % n is n - 1 for i = 0."""
    assert to_c((N - M) // 2) == "floor_div_i64(-1*m + n, 2)"
    assert to_c((N - 1) % M) == "floor_mod_i64(n - 1, m)"
    assert to_c((N + 1) // 2) == "((n + 1) / 2)"
