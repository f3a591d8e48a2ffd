"""Random nests of function transforms, against eager: the same values and gradients, and one graph."""

from __future__ import annotations

import pytest
from tests.capture.torch_functions.higher_order import transform_programs

import sweeps


@pytest.mark.parametrize("seed", range(sweeps.part(36)))
def test_as_eager(seed: int) -> None:
    assert transform_programs.difference(seed, "eager" if seed % 3 else "aot_eager") == ""


def test_gradients_that_are_off_under_vmap_and_forward_mode() -> None:
    """Forward mode looks at no grad mode; what is differentiated around it does."""
    assert transform_programs.difference(6199, "aot_eager") == ""


@pytest.mark.parametrize("seed", range(sweeps.part(12)))
def test_other_sizes_in_each_call(seed: int) -> None:
    backend = "eager" if seed % 3 else "aot_eager"
    assert transform_programs.difference(seed, backend, transform_programs.ROWS[:3]) == ""
