"""torch's recurrent layers, trained through compiled graphs."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import argand
from argand.autograd import trace_inference

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


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["lstm", "lstm-layers", "lstm-projected", "gru", "rnn"])
def test_a_length_that_varies(kind, train):
    torch.manual_seed(0)
    layer = KINDS[kind]()
    compiled = argand.compile(layer, backend="aot_eager", fullgraph=True)
    for length in (4, 7, 30, 50):
        x = torch.randn(length, 3, 5)
        if train:
            for want, got in zip(step(layer, layer, x), step(layer, compiled, x), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                assert got.stride() == want.stride()
        else:
            with torch.no_grad():
                (want, _), (got, _) = layer(x), compiled(x)
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                assert got.stride() == want.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_second_length_compiles_quickly(dynamic):
    layer = nn.LSTM(5, 6, bidirectional=True)
    compiled = argand.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for length in (20, 33):
            begin = time.thread_time()
            compiled(torch.randn(length, 3, 5))
            assert time.thread_time() - begin < 8  # 65 s and more when each step was walked


@pytest.mark.parametrize("kind", ["gru", "rnn", "lstm-projected"])
def test_the_graph_of_a_long_sequence_is_small(kind):
    layer = KINDS[kind]()
    sizes = []

    def backend(gm, inputs):
        sizes.append(len(trace_inference(gm, inputs).graph.nodes))
        return gm.forward

    with torch.no_grad():
        for length in (40, 400):
            argand.reset()
            argand.compile(layer, backend=backend, fullgraph=True, dynamic=False)(torch.randn(length, 3, 5))
    assert sizes[0] == sizes[1] < 40


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences(kind, train):
    torch.manual_seed(0)
    layer = KINDS[kind]()

    def run(data, sizes):
        return layer(nn.utils.rnn.PackedSequence(data, sizes))[0].data * 2

    compiled = argand.compile(run)
    for lengths in ([5, 3, 2], [7, 7, 1], [4, 4, 4]):
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(max(lengths), 3, 5), torch.tensor(lengths))
        with torch.set_grad_enabled(train):
            want, got = run(packed.data, packed.batch_sizes), compiled(packed.data, packed.batch_sizes)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        if train:
            weights = list(layer.parameters())
            pairs = zip(torch.autograd.grad(want.sum(), weights), torch.autograd.grad(got.sum(), weights), strict=True)
            for a, b in pairs:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_arguments_that_do_not_fit_raise_as_in_eager():
    layer = nn.GRU(5, 6)
    weights = list(layer.parameters())

    def run(x, h):
        return torch.gru(x, h, weights, True, 1, 0.0, False, False, False)[0]

    compiled = argand.compile(run)
    for x, h in ((torch.randn(4, 3, 5), torch.zeros(1, 2, 6)), (torch.randn(0, 3, 5), torch.zeros(1, 3, 6))):
        with pytest.raises(RuntimeError):
            run(x, h)
        with pytest.raises(RuntimeError):
            compiled(x, h)
