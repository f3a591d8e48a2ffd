"""Numbers that vary may change their sign, pass a bound or lie far from those that a graph was traced at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand

X = torch.arange(12.0).reshape(3, 4) - 3

FLOATS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "abs": lambda x, p: x * abs(p),
    "abs of the opposite": lambda x, p: x * abs(-p),
    "least": lambda x, p: x + min(abs(p), 3),
    "least of itself": lambda x, p: x + min(p, 100.0),
    "largest": lambda x, p: x * max(-p, p),
    "fabs": lambda x, p: x + math.fabs(p) * p,
    "root": lambda x, p: x + math.sqrt(abs(p)),
    "bounds in order": lambda x, p: F.hardtanh(x, -p, p),
    "positive alone": lambda x, p: F.triplet_margin_loss(x, x + 1, x - 1, margin=p),
    "spread": lambda x, p: torch.normal(x, p).isfinite(),
    "sign": lambda x, p: x.copysign(-p),
    "power": lambda x, p: x.abs() ** p,
}


def outcome(program: Callable[..., torch.Tensor], *args: Any) -> Any:
    try:
        return program(*args).tolist()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats(name: str, dynamic: bool | None) -> None:
    program = FLOATS[name]
    compiled = argand.compile(program, backend="aot_eager", dynamic=dynamic)
    for p in (2.0, 0.5, 0.25, -0.5, 0.0, 700.0, -700.0, -0.0):
        assert repr(outcome(compiled, X, p)) == repr(outcome(program, X, p)), p


def test_floats_that_one_sign_needs_are_one_graph_for_it() -> None:
    compiled = argand.compile(FLOATS["positive alone"], backend="aot_eager", dynamic=True, fullgraph=True)
    before = argand.config.cache_size_limit
    argand.config.cache_size_limit = 1
    try:
        for p in (2.0, 0.5, 0.25, 700.0):
            assert torch.allclose(compiled(X, p), FLOATS["positive alone"](X, p))
    finally:
        argand.config.cache_size_limit = before


INTEGERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "differences": lambda x, k: x.diff(n=k),
    "an element": lambda x, k: x[k - 2, k - 1],
    "an element from behind": lambda x, k: x[-k + 1, -k],
    "one of many": lambda x, k: x.view(-1)[k * 2],
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers(name: str, dynamic: bool | None) -> None:
    program = INTEGERS[name]
    for order in ((4, 3, 2, 4), (2, 4, 3)):
        compiled = argand.compile(program, backend="aot_eager", dynamic=dynamic)
        for k in order:
            assert outcome(compiled, X, k) == outcome(program, X, k), k


HALVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the last half": lambda x: x[-(x.shape[0] // 2) :],
    "the last third": lambda x: x[-(x.shape[0] // 3) :],
    "behind the middle": lambda x: x[x.shape[0] - x.shape[0] // 4 :],
    "a remainder": lambda x: x[-(x.shape[0] % 32) :],
    "one of a remainder": lambda x: x[x.shape[0] % 33 - 1],
    "one before the first": lambda x: x[(x.shape[0] - 6) // 8],
    "one that goes round": lambda x: x[(x.shape[0] - 6) % x.shape[0]],
    "around the middle": lambda x: x[x.shape[0] // 3 : -(x.shape[0] // 4)],
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_places_that_are_rounded(name: str, dynamic: bool | None) -> None:
    """Where the traces were of even sizes alone, `n // 2` and `n - n // 2` are one."""
    program = HALVES[name]
    compiled = argand.compile(program, backend="aot_eager", dynamic=dynamic)
    for n in (9, 12, 7, 5, 16, 33, 30):
        x = torch.arange(5.0 * n).reshape(n, 5)
        assert outcome(compiled, x) == outcome(program, x), n
