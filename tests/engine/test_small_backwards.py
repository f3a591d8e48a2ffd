"""Many small programs that call the engine: compiled as a whole, run under compiled autograd, and both, they return what
they return in eager, note the same, call the same hooks in the same order, and raise the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.engine.small_backwards import checkpoints_and_modules, functions, gradients, hooks

import argand
import sweeps
from argand.engine.entries import Trial
from helpers import assert_same

WAYS = ("whole", "engine", "both")
Program = Callable[[list[Any]], Any]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)


def programs(module: ModuleType) -> list[Program]:
    return [
        one
        for name, one in vars(module).items()
        if getattr(one, "__code__", None) and one.__module__ == module.__name__ and name != "leaf"
    ]


def outcomes(program: Program, way: str) -> list[Any]:
    """What three calls return, note and raise."""
    argand.reset()
    run = program if way in ("eager", "engine") else argand.compile(program, backend="eager")
    seen: list[Any] = []
    for call in range(3):
        torch.manual_seed(call)
        noted: list[Any] = []
        recorded = argand.compiled_autograd(backend="eager") if way in ("engine", "both") else contextlib.nullcontext()
        try:
            with recorded:
                result = run(noted)
        except Exception as error:
            result = type(error).__name__, str(error)[:100]
        seen.append((_plain(result), _plain(noted)))
    return seen


def _plain(value: Any) -> Any:
    """Tensors as they are by now, with what autograd says of them."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad, value.detach().clone()
    return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("module", [hooks, gradients, functions, checkpoints_and_modules])
def test_small_backwards_are_eagers(module: ModuleType, way: str) -> None:
    different = []
    for program, chosen in sweeps.diagonal(programs(module), WAYS):
        if chosen == way:
            try:
                assert_same(outcomes(program, "eager"), outcomes(program, way), exact=True)
            except AssertionError as error:
                different.append(f"{program.__name__}: {str(error)[:300]}")
    assert different == []
