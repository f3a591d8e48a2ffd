"""Graphs that have no loops are told from those that may have before anything is copied."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand.backends.programs import rolling
from argand.passes.rolling import windows


@pytest.fixture
def copies(monkeypatch):
    """Programs that were searched for loops."""
    searched = []
    copied = rolling.copied
    monkeypatch.setattr(rolling, "copied", lambda program: searched.append(program) or copied(program))
    monkeypatch.setattr(windows, "LEAST", 24)
    monkeypatch.setattr(windows, "LEAST_WITH_PRODUCTS", 6)
    return searched


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.into(self.norm(x)).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, 1)
        scores = F.softmax(q @ k.transpose(-1, -2) * 0.5, -1)
        return x + F.gelu(self.out((scores @ v).transpose(1, 2).flatten(2)))


def shared(part, count):
    return nn.Sequential(*[part] * count)


def convolution():
    return nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), nn.BatchNorm1d(5), nn.ReLU())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layer, count", [(Block, 8), (convolution, 30)])
def test_layers_with_parameters_of_their_own_are_not_searched(layer, count, training, copies):
    net = nn.Sequential(*[layer() for _ in range(count)]).double().train(training)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with torch.set_grad_enabled(training):
        result = argand.compile(net)(x)
        torch.testing.assert_close(result, net(x))
    if training:
        result.sum().backward()
    assert not copies


@pytest.mark.parametrize("kind", ["shared layers", "own numbers", "steps"])
def test_what_may_be_a_loop_is_searched(kind, copies):
    own = nn.Parameter(torch.randn(3))

    def steps(x):
        for number in range(30):
            x = torch.tanh(x * own[number % 3] if kind == "own numbers" else x * 0.5 + own)
        return x

    net = shared(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), 8) if kind == "shared layers" else steps
    with torch.no_grad():
        x = torch.randn(4, 3)
        torch.testing.assert_close(argand.compile(net)(x), net(x))
    assert copies
