"""Backwards under compiled autograd give eager's gradients; those that it is for are compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.backward_programs import COMPILED, ENGINE
from tests.engine.checkpoint_programs import CHECKPOINTS, UNRECORDED
from tests.engine.double_backward_programs import DIFFERENTIATED
from torch import nn

import argand
from argand.engine.entries import Trial
from helpers import assert_same, collected

NOT = {**ENGINE, **UNRECORDED}
ALL = {**COMPILED, **DIFFERENTIATED, **CHECKPOINTS, **NOT}


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)


def run(make: Callable[[], nn.Module], program: Any, steps: int, backend: str | None) -> list[Any]:
    """What is seen after each step: results, gradients and parameters."""
    torch.manual_seed(0)
    model = make()
    seen = []
    for step in range(steps):
        torch.manual_seed(step + 1)
        if backend is None:
            result = program(model, step)
        else:
            with argand.compiled_autograd(backend=backend):
                result = program(model, step)
        tensors = [(parameter, parameter.grad) for parameter in model.parameters()]
        seen.append(copy.deepcopy([result, [(a.detach(), b) for a, b in tensors], list(model.buffers())]))
    return seen


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_eagers(name: str) -> None:
    make, program = ALL[name]
    want = run(make, program, 4, None)
    with collected("compiled_autograd_graph", "fallback") as events:
        got = run(make, program, 4, "eager")
    assert_same(want, got)
    graphs = [event for event in events if event.name == "compiled_autograd_graph"]
    reasons = [event.data["reason"] for event in events if event.data.get("scope") == "compiled_autograd"]
    assert bool(graphs) == (name not in NOT), reasons
    if name in NOT:
        assert reasons


@pytest.mark.parametrize(
    "name", ["gpt", "cnn", "graph_break", "numbers", "penalty", "penalty_behind_code", "adapted", "checkpointed"]
)
def test_gradients_of_kernels_are_eagers(name: str) -> None:
    make, program = ALL[name]
    assert_same(run(make, program, 4, None), run(make, program, 4, "native"))


@pytest.mark.parametrize(
    "name",
    [
        "penalty",
        "penalty_behind_code",
        "penalty_with_hooks_that_detach",
        "penalty_through_a_graph",
        "adapted",
        "accumulated_with_graph",
        "accumulated_with_graph_behind_hooks",
        "products_with_the_hessian",
        "checkpoint_whose_gradient_is_differentiated",
    ],
)
def test_gradients_that_are_differentiated_are_compiled_too(name: str) -> None:
    """The first backward, whose gradients have a graph, and the one of what follows from these."""
    make, program = ALL[name]
    with collected("compiled_autograd_graph", "fallback") as events:
        run(make, program, 4, "eager")
    assert [event.name for event in events if event.data.get("scope") == "compiled_autograd"] == []
    assert sum(event.name == "compiled_autograd_graph" for event in events) >= 2
