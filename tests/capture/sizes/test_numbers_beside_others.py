"""Numbers that vary beside values of every kind, in containers too: native code compares them as it would in eager."""

from __future__ import annotations

import collections
import decimal
import enum
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand


class Level(enum.IntEnum):
    THREE = 3


class Whole(int):
    pass


VALUES: dict[str, Callable[[], Any]] = {
    "structured": lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0], "int64": lambda: np.int64(3),
    "float32": lambda: np.float32(3), "bool": lambda: np.bool_(True), "member": lambda: Level.THREE,
    "decimal": lambda: decimal.Decimal(3), "fraction": lambda: fractions.Fraction(3), "subclass": lambda: Whole(3),
    "complex": lambda: 3 + 0j, "none": lambda: None, "text": lambda: "3", "tuple": lambda: (3,),
    "array": lambda: np.array(3), "tensor": lambda: torch.tensor(3), "dtype": lambda: torch.float32,
    "nan": lambda: float("nan"), "truth": lambda: True,
}  # fmt: skip

ASKED: tuple[Callable[[Any, Any], Any], ...] = (
    lambda n, v: n in [v],
    lambda n, v: n in (None, v),
    lambda n, v: n in collections.deque([v]),
    lambda n, v: n in {v: 1},
    lambda n, v: [v].index(n),
    lambda n, v: (v, v).count(n),
    lambda n, v: n == v,
    lambda n, v: v != n,
    lambda n, v: n < v,
    lambda n, v: [n] == [v],
    lambda n, v: (v,) == (n,),
    lambda n, v: {1: n} == {1: v},
    lambda n, v: {n: 1}.get(v),
    lambda n, v: len({n, v}),
    lambda n, v: max(n, v),
    lambda n, v: sorted([n, v]),
    lambda n, v: divmod(n, v),
    lambda n, v: divmod(v, n),
    lambda n, v: n + v,
    lambda n, v: sum([n, v]),
    lambda n, v: n**v,
)


@pytest.mark.parametrize("kind", VALUES)
def test_as_eager(kind: str) -> None:
    for number, ask in enumerate(ASKED):

        def program(x: torch.Tensor, v: Any, ask: Callable[[Any, Any], Any] = ask) -> Any:
            try:
                answer = ask(x.shape[0], v)
            except Exception as error:
                return x * 1, type(error), str(error)
            return x * 1, type(answer), repr(answer)

        argand.reset()
        compiled = argand.compile(program, backend="eager", dynamic=True)
        for size in (3, 4):
            x, value = torch.ones(size), VALUES[kind]()
            assert program(x, value)[1:] == compiled(x, value)[1:], number
