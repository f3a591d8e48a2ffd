"""Numbers that vary are Python's, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import number_programs

import sweeps


@pytest.mark.parametrize(("backend", "count"), [("eager", 60), ("native", 6)])
def test_random_programs(backend: str, count: int) -> None:
    """The command of `number_programs.py` tries more."""
    for seed in range(sweeps.part(count, 3 if backend == "eager" else 6)):
        text = number_programs.program(seed)
        how = number_programs.difference(text, seed, backend)
        assert how is None, f"seed {seed}: {how}\n{text}"


def test_a_difference_is_seen() -> None:
    """The sign of a zero, the type of a number, one NaN for another are not the same, or are."""
    assert not number_programs.same(number_programs.plain(0.0), number_programs.plain(-0.0), True)
    assert not number_programs.same(number_programs.plain(True), number_programs.plain(1), True)
    assert number_programs.same(["tensor", float("nan")], ["tensor", -float("nan")], True)
    assert not number_programs.same(["tensor", 0.0], ["tensor", -0.0], True)
