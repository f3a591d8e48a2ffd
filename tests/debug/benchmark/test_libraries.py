"""`bench/libraries.py`: when two systems' results count as equal; what its scripts must not be called."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("libraries")


def softmax_step(bias: float, weight: float) -> Any:
    """A step's result with these gradients; the bias before a softmax has none, but for rounding."""
    return {"values": [torch.tensor(2.0)], "gradients": [torch.full((3,), weight), torch.full((1,), bias)]}


@pytest.mark.parametrize(
    ("ours", "equal"),
    [((-1.9e-6, 20.0), True), ((4e-3, 20.0), False), ((-5e-7, 20.1), False), ((float("nan"), 20.0), False)],
)
def test_a_gradient_that_is_zero_but_for_rounding(libraries: Any, ours: tuple[float, float], equal: bool) -> None:
    eager, argand = softmax_step(-5e-7, 20.0), softmax_step(*ours)
    assert (libraries.difference(eager, argand) <= 1e-3) == equal


def test_other_results_are_compared_with_themselves(libraries: Any) -> None:
    assert (
        libraries.difference([torch.tensor(20.0), torch.tensor(1e-6)], [torch.tensor(20.0), torch.tensor(2e-6)]) > 0.9
    )


def test_no_script_is_taken_for_a_package_that_transformers_looks_for() -> None:
    """It would import argand with the model, and first calls would seem shorter than they are."""
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None:
        pytest.skip("transformers is not installed")
    text = (Path(package.origin).parent / "utils" / "import_utils.py").read_text()
    wanted = set(re.findall(r'_is_package_available\(\s*"(\w+)', text))
    assert "kernels" in wanted and not wanted & {path.stem for path in BENCH.iterdir()}
