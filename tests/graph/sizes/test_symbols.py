"""Symbols, their probes, and fitting expressions to numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argand.graph.sizes.expr import Const, Sym
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbols import CONGRUENT, PROBES, SymbolTable


def _table(*hints: int):
    table = SymbolTable()
    return table, [table.new(f"x.size()[{i}]", hint) for i, hint in enumerate(hints)]


def test_probes_are_congruent_then_rough():
    table, (s0, s1) = _table(16, 64)
    assert len(table.probes) == PROBES
    for sym in (s0, s1):
        hint = table.hints[sym]
        values = [probe[sym] for probe in table.probes]
        assert len({hint, *values}) == PROBES + 1
        assert all((value - hint) % 5040 == 0 for value in values[:CONGRUENT])
        residues = {hint % 3, *(value % 3 for value in values[CONGRUENT:])}
        assert residues == {0, 1, 2}
        assert {hint % 2, *(value % 2 for value in values[CONGRUENT:])} == {0, 1}
    assert all(probe[s0] != probe[s1] for probe in table.probes)
    assert max(table.probes[0].values()) ** 4 < 1 << 62


def test_range_modulus_and_facts_bound_the_probes():
    table = SymbolTable()
    s0 = table.new("n", 16, min=2, max=512, modulus=8)
    assert all(2 <= probe[s0] <= 512 and probe[s0] % 8 == 0 for probe in table.probes)
    s1 = table.new("m", 10, facts=[Relation("lt", s0, 10**9), Relation("le", table.define("add", s0, 0), 600)])
    s2 = table.new("k", 4, facts=[Relation("le", s0, 600)])
    assert all(table.holds(Relation("le", s0, 512), probe) for probe in table.probes)
    assert s1 is not s2


def test_no_room_is_an_error():
    with pytest.raises(ValueError, match="no other value"):
        SymbolTable().new("n", 3, min=3, max=3)


def test_only_one_symbol_has_few_values():
    """Every value of one is tried; the probes of a second one would be the first one's, and formulas of the two alike."""
    table = SymbolTable()

    def new(name: str) -> Any:
        sym = Sym(f"s{len(table.symbols)}", 2)
        return table.new(name, 3, facts=[Relation("lt", sym, 5)])

    few = new("k")
    assert {assignment[few] for assignment in table.assignments} == {2, 3, 4}
    with pytest.raises(ValueError, match="no other value"):
        new("j")
    assert all(list(assignment) == [few] for assignment in table.assignments)


def test_fit_of_what_models_compute():
    table, (b, s) = _table(4, 48)
    for value in (
        b * s,
        12 * b,
        b * 12 * s * s,
        s - 1,
        s + 1,
        (s - 1) // 2 + 1,
        b + s,
        2 * b + 3 * s + 1,
        b * s + b,
        s // 3,
    ):
        assert table.fit(table.vector(value)) is value
    assert table.fit((7, 7, 7, 7, 7)) == Const(7)
    assert table.fit((1, 2, 3, 4, 1000)) is None


def test_exact_division_is_a_condition():
    table, (s,) = _table(16)
    congruent = range(CONGRUENT + 1)
    assert table.fit(table.vector(s // 8)[: CONGRUENT + 1], at=congruent) is s // 8
    assert list(table.fitter.conditions) == [Relation("eq", s % 8)]
    table, (a, b) = _table(16, 64)
    fitted = table.fit(table.vector(a * b // 16)[: CONGRUENT + 1], at=congruent)
    assert fitted is not None
    assert all(table.evaluate(fitted, p) == p[a] * p[b] // 16 for p in table.assignments[: CONGRUENT + 1])
    assert table.fitter.conditions


def test_definitions():
    table, (s,) = _table(16)
    scale = table.define("truediv", 1.0, table.define("sqrt", s))
    assert table.define("truediv", 1.0, table.define("sqrt", s)) is scale
    assert table.kinds[scale] == "float"
    assert table.vector(scale) == tuple(1.0 / math.sqrt(v) for v in table.vector(s))
    assert table.fit(table.vector(scale)) is scale
    assert table.evaluate(scale, {s: 4}) == 0.5
    capped = table.define("min", s, 512)
    assert table.fit([2 * min(v, 512) for v in table.vector(s)]) is 2 * capped
    assert table.inputs(capped * 3 + 1) == {s}
    with pytest.raises(ZeroDivisionError):
        table.define("truediv", 1, 0)


def test_relations():
    table, (a, b) = _table(4, 8)
    relation = Relation("le", a * 2, b)
    assert str(relation) == "2*s0 <= s1"
    assert table.holds(relation, table.hints) and not table.holds(relation.negated(), table.hints)
    assert table.holds(relation, {a: 3}) is None
    assert relation.symbols == {a, b}


_shapes = st.sampled_from(
    ["a*b", "a+b", "p*a+q", "(a+q)//2", "(a-1)//2+1", "p*a*b", "a*a*p", "(a+b)*p", "a//3", "a*b+p"]
)


@settings(max_examples=150, deadline=None)
@given(_shapes, st.integers(2, 200), st.integers(2, 200), st.integers(1, 9), st.integers(0, 9))
def test_fit_never_answers_wrongly(shape: str, first: int, second: int, p: int, q: int):
    """Whatever is fitted agrees at assignments that the fit has not seen."""
    if first == second:
        second += 1
    table, (a, b) = _table(first, second)
    wanted = eval(shape, {"a": a, "b": b, "p": p, "q": q})
    fitted = table.fit(table.vector(wanted))
    assert fitted is not None
    for x, y in ((2, 2), (3, 17), (31, 5), (1000, 999), (77, 78)):
        assert table.evaluate(fitted, {a: x, b: y}) == table.evaluate(wanted, {a: x, b: y})


@pytest.mark.parametrize("op", ["le", "gt"])
def test_an_order_that_is_known_makes_no_symbols_go_in_step(op: str):
    """Of numbers chosen such that one is the larger, what lies between is not a constant, nor what another symbol is."""
    for values in itertools.permutations((9, 4, 3, 12), 3):
        table = SymbolTable()
        names = [Sym(f"s{i}", 2) for i in range(3)]
        relation = Relation(op, names[2], names[0])
        if not relation.compare(values[2], values[0]):
            continue
        a, b, c = (table.new("n", n, facts=[relation], name=s.name) for n, s in zip(values, names))
        for wanted in (a - b, a - c, b - c, a + c, a + b, 2 * a - c, 2 * c - a, a - b - c, a + b - c):
            assert table.fit([table.vector(wanted)[i] for i in (0, 3, 4)], at=(0, 3, 4)) in (wanted, None), values
