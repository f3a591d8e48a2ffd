"""Recurrent layers of tensors on a GPU: one call of what eager calls, with the program's own weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from argand.autograd.tracing import inference
from argand.backends.cudagraphs import why_not, with_cuda_graphs
from argand.backends.targets import devices_in
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from helpers import collected

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of traces stand for tensors on a GPU."""
    make = SpecTable.make

    def on_gpu(self: SpecTable, *args: Any) -> Any:
        return make(self, *args[:4], GPU)

    monkeypatch.setattr(SpecTable, "make", on_gpu)


def traced(function: Any, layer: torch.nn.RNNBase) -> AtenProgram:
    """The program of a layer that reads batches of 3 sequences of 40 steps."""
    weights = [weight.detach() for weight in layer._flat_weights if weight is not None]
    states = [torch.zeros(layer.num_layers, 3, 8) for _ in range(2 if function is torch.lstm else 1)]
    given = [tensor.to(weights[0].dtype) for tensor in (torch.randn(3, 40, 8), *states, *weights)]
    graph = fx.Graph()
    x, *rest = [graph.placeholder(f"a{i}") for i in range(len(given))]
    count = 2 if function is torch.lstm else 1
    state: Any = (rest[0], rest[1]) if count == 2 else rest[0]
    arguments = (x, state, rest[count:], True, layer.num_layers, layer.dropout, False, False, True)
    graph.output(graph.call_function(function, arguments))
    return inference.trace(fx.GraphModule({}, graph), given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("function", "kind"), [(torch.lstm, torch.nn.LSTM), (torch.gru, torch.nn.GRU), (torch.rnn_tanh, torch.nn.RNN)]
)
def test_one_operator_with_the_weights_as_they_are(function: Any, kind: Any, dtype: torch.dtype) -> None:
    program = traced(function, kind(8, 8, 2, batch_first=True).to(dtype))
    (made,) = [node for node in program.graph.nodes if str(node.target) == "argand.recurrence.default"]
    weights = made.args[4]
    assert all(node.op == "placeholder" for node in weights) and len(weights) == 8
    assert [device.type for device in devices_in(program)] == ["cuda"]


def test_it_is_recorded_as_a_cuda_graph_though_it_is_one_call() -> None:
    program = traced(torch.lstm, torch.nn.LSTM(8, 8, 2, batch_first=True))
    assert why_not(program, devices_in(program)) == ""
    with collected("cudagraphs") as seen:
        with_cuda_graphs(program, lambda args: (), lambda index: None, asked=False)  # type: ignore[arg-type, return-value]
    assert not seen


def test_dropout_between_layers_and_autocast_are_torchs_own_affair() -> None:
    from argand.autograd.ops import recurrent
    from argand.runtime.kernels.recurrent import recurrence

    layer = torch.nn.LSTM(8, 8, 2, dropout=0.5)
    state = (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8))
    args = (torch.randn(5, 3, 8), state, layer._flat_weights, True, 2, 0.5, True, False, False)
    call = recurrence("lstm", args, {})
    assert call is not None and call.draws
    assert recurrent._wants_more(call)  # its weights require grad
    with torch.no_grad():
        assert not recurrent._wants_more(call)
        torch.set_autocast_enabled("cuda", True)
        try:
            assert recurrent._wants_more(call)
        finally:
            torch.set_autocast_enabled("cuda", False)
