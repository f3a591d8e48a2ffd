"""NaNs that leave captured code: which object one is decides what a dict, a set or `in` says of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import argand

_KEPT = float("nan")
_KEYS = {
    "made": lambda a, n: float("nan"),
    "computed": lambda a, n: math.inf - math.inf,
    "complex": lambda a, n: complex("nan"),
    "item": lambda a, n: torch.tensor(math.nan).item(),
    "in a tuple": lambda a, n: (float("nan"), 1),
    "of a module": lambda a, n: math.nan,
    "global": lambda a, n: _KEPT,
    "argument": lambda a, n: a,
    "of arguments": lambda a, n: max(a, 1.0) if n % 2 else a + 1,
    "folded": lambda a, n: 1e308 * 10 - 1e308 * 10,
}


@pytest.mark.parametrize("name", _KEYS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_keys(name: str, dynamic: bool | None) -> None:
    key = _KEYS[name]

    def program(x: torch.Tensor, a: float, n: int, held: dict[Any, int], row: list[Any]) -> torch.Tensor:
        y = x + n
        value = key(a, n)
        held[value] = n
        row.append(value)
        row.append(value)
        return y * len(held)

    outcomes = []
    for run in (program, argand.compile(program, backend="eager", dynamic=dynamic)):
        held: dict[Any, int] = {}
        row: list[Any] = []
        other = float("nan")
        sums = [run(torch.ones(2), a, n, held, row) for n, a in enumerate((1.5, math.nan, other, other, math.nan, 2.0))]
        outcomes.append((torch.stack(sums).tolist(), len(held), [row.index(value) for value in row]))
    assert outcomes[0] == outcomes[1]
