"""exact_equal against a plain Python definition of it."""

from __future__ import annotations

import copy
import math
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from argand._core import _C

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, math.nan]),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
)
hashables = st.recursive(atoms, lambda s: st.one_of(st.tuples(s, s), st.frozensets(s, max_size=3)), max_leaves=5)
values = st.recursive(
    st.one_of(atoms, st.sets(hashables, max_size=4)),
    lambda s: st.one_of(st.lists(s, max_size=4), st.tuples(s, s), st.dictionaries(hashables, s, max_size=4)),
    max_leaves=12,
)


def model(a: Any, b: Any) -> bool:
    """What "equals" promises, the slow way."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return model(a.real, b.real) and model(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(model(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return model(list(a.items()), list(b.items()))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(model(x, y) for y in b) for x in a)
    return bool(a == b)


@settings(max_examples=sweeps.part(300), deadline=None)
@given(values, values)
def test_agrees_with_the_model(a: Any, b: Any) -> None:
    assert _C.exact_equal(a, b) is model(a, b)


@settings(max_examples=sweeps.part(300), deadline=None)
@given(values)
def test_a_copy_is_equal_and_a_guard_holds_for_it(a: Any) -> None:
    twin = copy.deepcopy(a)
    assert _C.exact_equal(a, twin) and _C.exact_equal(a, a)
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", 0), "equals", a, label="g")
    assert tree.evaluate((twin,)) is True


@settings(max_examples=200, deadline=None)
@given(st.lists(values, min_size=1, max_size=4), st.data())
def test_one_changed_item_is_seen(items: list[Any], data: Any) -> None:
    at = data.draw(st.integers(0, len(items) - 1))
    other = data.draw(values)
    changed = [*items[:at], other, *items[at + 1 :]]
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", 0), "equals", items, label="g")
    result = tree.evaluate((changed,))
    assert (result is True) is model(items[at], other)
    assert result is True or result[:2] == (0, "g")


@settings(max_examples=200, deadline=None)
@given(values, values)
def test_symmetric(a: Any, b: Any) -> None:
    assert _C.exact_equal(a, b) is _C.exact_equal(b, a)


def test_pairs_that_python_calls_equal() -> None:
    for a, b in [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], [True]),
        ({1}, {True}),
        ({1: 2}, {True: 2}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (frozenset([1.0]), frozenset([1])),
        (slice(1), slice(1.0)),
        (complex(0.0, -0.0), complex(0.0, 0.0)),
    ]:
        assert a == b and not _C.exact_equal(a, b)


def test_sets_of_tuples_in_any_order() -> None:
    a = {(i, str(i)) for i in range(50)}
    b = set(sorted(a, reverse=True))
    assert _C.exact_equal(a, b) and not _C.exact_equal(a, b - {(3, "3")} | {(3.0, "3")})


def test_deep_nesting_is_a_recursion_error_not_a_crash() -> None:
    a: Any = []
    b: Any = []
    for _ in range(100_000):
        a, b = [a], [b]
    try:
        _C.exact_equal(a, b)
        raise AssertionError("no RecursionError")
    except RecursionError:
        pass
