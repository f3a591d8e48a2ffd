"""Steps with `torch.amp.GradScaler` as one function: what is skipped, and how the scale grows, is eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import assert_same, texts_of

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "AdamW": {},
    "Adam": {"fused": True, "amsgrad": True},
    "Adagrad": {"fused": True},
}


def trained(name: str, clipped: bool, backend: str | None) -> list[Any]:
    """Parameters, states and the scaler behind each of six steps; the gradients of two are infinite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = getattr(torch.optim, name)(model.parameters(), 0.1, **OPTIMIZERS[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if clipped:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    run = argand.compile(step, backend=backend) if backend else step
    seen = []
    for at in range(6):
        loss = run(torch.randn(4, 6) * (float("inf") if at in (2, 3) else 1))
        states = list(optimizer.state.values())
        seen.append(
            copy.deepcopy([loss.detach(), [p.detach() for p in model.parameters()], states, scaler.state_dict()])
        )
    return seen


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("backend", "clipped"), [("eager", False), ("eager", True), ("native", True)])
def test_steps_are_skipped_and_scales_grow_as_in_eager(name: str, backend: str, clipped: bool) -> None:
    want = trained(name, clipped, None)
    with texts_of("graph_breaks") as breaks:
        got = trained(name, clipped, backend)
    assert_same(want, got, exact=backend == "eager")
    optimizer = getattr(torch.optim, name)([torch.ones(1, requires_grad=True)], 0.1, **OPTIMIZERS[name])
    asks = not getattr(optimizer, "_step_supports_amp_scaling", False)  # the program, whether something is infinite
    assert not breaks or asks
