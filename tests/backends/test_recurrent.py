"""torch's recurrent layers, trained through compiled graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import argand

KINDS = {
    "lstm": lambda: nn.LSTM(5, 6),
    "lstm-layers": lambda: nn.LSTM(5, 6, num_layers=2, batch_first=True),
    "lstm-both-ways": lambda: nn.LSTM(5, 6, bidirectional=True),
    "lstm-projected": lambda: nn.LSTM(5, 6, proj_size=3),
    "lstm-no-bias": lambda: nn.LSTM(5, 6, bias=False),
    "gru": lambda: nn.GRU(5, 6, bidirectional=True),
    "rnn": lambda: nn.RNN(5, 6, nonlinearity="relu"),
}


def step(layer, run, x):
    x = x.clone().requires_grad_()
    y, state = run(x)
    states = state if isinstance(state, tuple) else (state,)
    loss = y.square().sum() + sum(s.sin().sum() for s in states)
    made = torch.autograd.grad(loss, [x, *layer.parameters()])
    return [loss.detach(), *made]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_recurrent_layer(kind, backend):
    torch.manual_seed(0)
    layer = KINDS[kind]()
    compiled = argand.compile(layer, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 3, 5)
        for want, got in zip(step(layer, layer, x), step(layer, compiled, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_recurrent_layer_with_and_without_gradients(backend):
    """The kernel makes a workspace only for a backward: each kind of call has its own graph."""
    torch.manual_seed(0)
    layer = nn.LSTM(5, 6, num_layers=2)
    compiled = argand.compile(layer, backend=backend, fullgraph=True)
    x = torch.randn(4, 3, 5)
    for grad in (False, True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
