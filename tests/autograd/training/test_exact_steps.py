"""Whole training steps by eager's kernels: one graph, compiled twice at most, and every bit of eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import CountingBackend, assert_same

O = torch.optim
STEPS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "RAdam": (O.RAdam, [{}, {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}]),
    "NAdam": (O.NAdam, [{}, {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}]),
    "ASGD": (O.ASGD, [{}, {"t0": 2, "lambd": 0.01, "alpha": 0.5, "weight_decay": 0.1, "maximize": True}]),
    "Adafactor": (O.Adafactor, [{}, {"weight_decay": 0.1, "maximize": True}, {"foreach": True}]),
    "Adamax": (O.Adamax, [{}, {"foreach": True, "maximize": True, "weight_decay": 0.1}]),
    "Rprop": (O.Rprop, [{}, {"foreach": True, "maximize": True}]),
    "Adam": (O.Adam, [{"amsgrad": True}, {"foreach": True, "maximize": True, "weight_decay": 0.1}]),
    "Muon": (O.Muon, [{}, {"nesterov": False, "weight_decay": 0.1}]),
}


class Net(nn.Module):
    """With a parameter that is a single number, where the optimizer takes such."""

    def __init__(self, matrices: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5, bias=not matrices), nn.Linear(5, 3, bias=not matrices)
        self.scale = None if matrices else nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(torch.tanh(self.a(x)))
        return y if self.scale is None else y * self.scale


def trained(cls: Any, options: dict[str, Any], backend: Any) -> list[Any]:
    torch.manual_seed(0)
    model = Net(cls is O.Muon)
    optimizer = cls(model.parameters(), lr=0.05, **options)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = step if backend is None else argand.compile(step, backend=backend, fullgraph=True)
    x = torch.randn(4, 6)
    losses = [run(x * (i + 1)) for i in range(5)]
    return [losses, [p.detach() for p in model.parameters()], optimizer.state_dict()["state"]]


@pytest.mark.parametrize("name", STEPS)
def test_every_bit_is_eagers(name: str) -> None:
    cls, variants = STEPS[name]
    for options in variants:
        counting = CountingBackend()
        want, got = trained(cls, options, None), trained(cls, options, counting)
        assert_same(want, got, exact=True)
        assert len(counting.graphs) <= 2
