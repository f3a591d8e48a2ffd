"""A fraction of pointwise_sweep.py, and the combinations that once did not compile."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from tests.backends.operators.pointwise_sweep import failures, valid

import argand
import sweeps


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


@pytest.mark.parametrize(
    ("dtype", "name"),
    sweeps.chessboard(
        [torch.float32, torch.float64, torch.bfloat16, torch.float16],
        ["relu", "relu6", "clamp", "clamp_min", "clamp_max", "clamp_to_tensor", "fmax", "fmin", "hardtanh"],
    ),
)
def test_the_sign_of_zero(name: str, dtype: torch.dtype) -> None:
    """Of two zeros that differ in their sign the result is the one that eager takes, in whole vectors and behind them."""
    calls = {
        "relu": lambda x, y: torch.relu(x),
        "relu6": lambda x, y: torch.nn.functional.relu6(x),
        "clamp": lambda x, y: x.clamp(-0.0, 1.0),
        "clamp_min": lambda x, y: x.clamp(min=-0.0),
        "clamp_max": lambda x, y: x.clamp(max=0.0),
        "clamp_to_tensor": lambda x, y: x.clamp(y, y),
        "fmax": torch.fmax,
        "fmin": torch.fmin,
        "hardtanh": lambda x, y: torch.nn.functional.hardtanh(x, -0.0, 0.0),
    }
    zeros = torch.tensor(
        [0.0, -0.0, float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).tiny / 2], dtype=dtype
    )
    x, y = zeros.repeat_interleave(6).repeat(2), zeros.repeat(12)
    want, got = calls[name](x, y), argand.compile(calls[name])(x, y)
    assert torch.equal(torch.nan_to_num(want, 7.0), torch.nan_to_num(got, 7.0))
    assert torch.equal(torch.signbit(want) & ~want.isnan(), torch.signbit(got) & ~got.isnan())
