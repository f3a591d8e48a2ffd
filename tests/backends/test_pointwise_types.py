"""A fraction of pointwise_sweep.py, and the combinations that once did not compile."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from pointwise_sweep import failures, valid


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.int8, torch.float16),
        (torch.uint8, torch.int64),
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.bool),
    ],
)
def test_some_of_all(a: torch.dtype, b: torch.dtype) -> None:
    found, operands = valid(a, b, random.Random(7))
    assert failures(found[:60], operands) == []


def test_where_of_booleans() -> None:
    chooser = random.Random(0)
    found, operands = valid(torch.bool, torch.uint8, chooser)
    chosen = [(name, program, i) for name, program, _ in found if name.startswith("where") for i in (1, 2, 3)]
    assert len(chosen) > 200
    assert failures(chooser.sample(chosen, 80), operands) == []
    assert failures([one for one in chosen if one[0] in ("where True False", "where False True", "where True True")],
                    operands) == []  # fmt: skip
