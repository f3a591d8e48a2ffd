"""Hooks that no attribute of a leaf shows: `backward()` in captured code leaves their gradients to the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand._core.node_layout import node_layout
from argand.capture.torch_functions.higher_order import leaf_hooks
from helpers import assert_same, collected


@pytest.mark.parametrize(
    ("when", "kind", "backend"),
    sweeps.combinations([0, 2], ["register_hook", "register_prehook"], ["eager", "aot_eager", "native"]),
)
def test_a_hook_on_the_node_that_accumulates_a_gradient(backend: str, kind: str, when: int) -> None:
    """No attribute of the leaf shows it."""

    def outcome(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
        node, seen = torch.autograd.graph.get_gradient_edge(w).node, []

        def step() -> None:
            (x @ w).tanh().sum().backward()

        run = argand.compile(step, backend=backend) if compiled else step
        for number in range(4):
            if number == when:
                getattr(node, kind)(lambda *grads: seen.append(number))
            run()
        return [seen, w.grad]

    assert_same(outcome(True), outcome(False))


def test_a_hook_of_cpp_on_a_leaf_ends_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here any hook is taken for one of C++."""
    layout = node_layout()
    assert layout is not None
    monkeypatch.setattr(leaf_hooks, "node_layout", lambda: replace(layout, leaf=(*layout.leaf[:3], 1)))
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda grad: grad * 2)

    def step(x: torch.Tensor) -> None:
        (x * w).sum().backward()

    def asked(x: torch.Tensor) -> Any:
        return torch.autograd.grad((x * w).sum(), [w])

    for function in (step, asked):
        with collected("graph_breaks") as told:
            argand.compile(function, backend="eager")(torch.ones(3))
        assert "C++" in str(told[0].data["reason"])
    assert torch.equal(w.grad, torch.full((3,), 2.0))
