"""Minimum cuts against brute force."""

from __future__ import annotations

from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argand.graph.minimum_cut import INFINITE, FlowNetwork

edges = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)).filter(lambda e: e[0] != e[1]), max_size=18
)


def cut_value(found: list[tuple[int, int, int]], side: tuple[bool, ...]) -> int:
    return sum(capacity for start, end, capacity in found if side[start] and not side[end])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(edges)
def test_the_cut_is_the_smallest_of_all(found: list[tuple[int, int, int]]) -> None:
    network = FlowNetwork()
    for _ in range(7):
        network.vertex()
    for start, end, capacity in found:
        network.edge(start, end, capacity)
    value, side = network.minimum_cut(0, 6)
    best = min(cut_value(found, (True, *middle, False)) for middle in product((True, False), repeat=5))
    assert value == best
    assert side[0] and not side[6]
    assert cut_value(found, tuple(side)) == best


def test_what_cannot_be_cut_is_infinite() -> None:
    network = FlowNetwork()
    a, b, c = network.vertex(), network.vertex(), network.vertex()
    network.edge(a, b, INFINITE)
    network.edge(b, c, INFINITE)
    assert network.minimum_cut(a, c)[0] >= INFINITE


def test_a_long_chain_needs_no_recursion() -> None:
    network = FlowNetwork()
    chain = [network.vertex() for _ in range(5000)]
    for at, (start, end) in enumerate(zip(chain, chain[1:])):
        network.edge(start, end, 3 if at == 4000 else 5)
    value, side = network.minimum_cut(chain[0], chain[-1])
    assert value == 3
    assert side.count(True) == 4001
