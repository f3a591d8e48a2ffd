"""Python integers that vary and leave the 64 bits of compiled code give what eager gives, errors included."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import assert_same

Program = Callable[[torch.Tensor, int], Any]

ONE_RESULT: dict[str, Program] = {
    "product": lambda x, n: x * (n * n),
    "sum": lambda x, n: x * (n + 2**62),
    "of integers": lambda x, n: x.long() * (n * n),
    "full": lambda x, n: torch.full((3,), n * n),
    "arange": lambda x, n: torch.arange(n, n + 3) + x.long(),
    "in between": lambda x, n: x.long() + n - n * 2,
}
MANY_RESULTS: dict[str, Program] = {
    "remainder": lambda x, n: x * ((n * n) % 1000),
    "quotient": lambda x, n: x * float(-(n * n) // 3),
    "bits": lambda x, n: x * ((n * n) & 0xFF) + (n >> 3) % 7,
    "generator": lambda x, n: x * ((n * 6364136223846793005 + 1442695040888963407) % 2**64 // 2**33),
    "comparison": lambda x, n: x + 1 if n * n > 2**63 else x - 1,
    "root": lambda x, n: x * (n * n) ** 0.5,
    "least": lambda x, n: x * min(n * n, 100),
    "text": lambda x, n: (x + 1, str(n * n), n * n),
    "double": lambda x, n: x.double() + float(n),
}
VALUES = (3, 5, 7, 3037000499, 3037000500, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 10**30, -(2**40), -(2**63), 11)


def outcome(fn: Program, n: int) -> Any:
    try:
        return fn(torch.tensor([1.0, 2.0, -3.0]), n)
    except (RuntimeError, OverflowError) as error:
        return type(error).__name__


def check(fn: Program, dynamic: bool | None) -> None:
    argand.config.cache_size_limit = 64
    compiled = argand.compile(fn, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in VALUES:
            assert_same(outcome(fn, n), outcome(compiled, n))


@pytest.mark.parametrize("name", ONE_RESULT)
def test_integer_beyond_64_bits(name: str) -> None:
    check(ONE_RESULT[name], True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_beyond_64_bits_on_the_way(dynamic: bool | None) -> None:
    check(lambda x, n: [fn(x, n) for fn in MANY_RESULTS.values()], dynamic)


def test_numbers_in_range_cost_no_second_program() -> None:
    from helpers import collected

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (n * n % 1000)

    compiled = argand.compile(fn, dynamic=True, backend="aot_eager")
    with collected("aot_inference_graph", "fallback") as events:
        for n in range(100, 110):
            compiled(torch.ones(3), n)
    assert len(events) == 1
