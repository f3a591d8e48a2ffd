"""Compiled functions under states of torch that the program sets around them: active at the first call, and toggled later.

Each program runs in eager and compiled, and must give the same. What a state is (levels, modes, hooks, flags, bits of tensors) is
in the name of the program.
"""

# mypy: ignore-errors
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.deterministic
from tests.breadth import ambient_flags  # noqa: F401 - registers more
from tests.breadth.ambient_programs import CASES, Wrap, f, t0, x0

import argand
import sweeps
from helpers import assert_same


def outcome(fn: Callable[[Wrap], Any], wrap: Wrap) -> Any:
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fn(wrap)
    return [one.detach() if isinstance(one, torch.Tensor) else str(one) for one in leaves(result)]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in leaves(item)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize(("name", "backend"), sweeps.diagonal(CASES, ["eager", "aot_eager", "native"]))
def test_state(name: str, backend: str) -> None:
    want = outcome(CASES[name], lambda fn: fn)
    assert_same(want, outcome(CASES[name], lambda fn: argand.compile(fn, backend=backend)), strides=False)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_second_derivative_is_there(backend: str) -> None:
    want = torch.autograd.functional.jvp(f, x0, t0)
    torch.testing.assert_close(torch.autograd.functional.jvp(argand.compile(f, backend=backend), x0, t0), want)
    x = x0.clone().requires_grad_()
    given = x * 1
    (g,) = torch.autograd.grad(argand.compile(lambda x: x.exp(), backend=backend)(given).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x, allow_unused=True)[0], x.exp().detach())
    (g,) = torch.autograd.grad(argand.compile(lambda x: x.exp(), backend=backend)(x * 1).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], x.exp().detach())
