"""Random programs: compiled equals eager in values, side effects, exceptions and aliasing."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent / "fuzz"))

import differential
import programs


@pytest.mark.parametrize("batch", range(20))
def test_seeded_programs(batch: int) -> None:
    """500 programs, each called with two sizes; every second batch with symbolic sizes from the start."""
    for seed in range(batch * 25, batch * 25 + 25):
        source = programs.program(random.Random(seed).randrange)
        found = differential.difference(source, calls=3, dynamic=True if batch % 2 else None)
        assert found is None, f"seed {seed}\n{source[len(programs.PRELUDE) :]}\n{found}"


def test_programs_are_called_with_several_sizes() -> None:
    module = differential.load(programs.program(random.Random(0).randrange))
    sizes = {differential.arguments(module, call)[0].shape[0] for call in range(3)}
    assert len(sizes) >= 2


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_programs(data: st.DataObject) -> None:
    source = programs.program(lambda k: data.draw(st.integers(0, k - 1)), size=6)
    assert differential.difference(source) is None, source[len(programs.PRELUDE) :]


@pytest.mark.parametrize("batch", range(2))
def test_seeded_programs_on_native(batch: int) -> None:
    for seed in range(1000 + batch * 10, 1000 + batch * 10 + 10):
        source = programs.program(random.Random(seed).randrange, size=6)
        assert differential.difference(source, backend="native") is None, (
            f"seed {seed}\n{source[len(programs.PRELUDE) :]}"
        )
