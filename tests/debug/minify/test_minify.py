"""The minifier as a function: smallest programs, the same failure, whatever kind it is."""

from __future__ import annotations

import ctypes
import operator
import time

import pytest
import torch
from torch import fx

from argand.debug.minify import (
    BackendCheck,
    Fingerprint,
    Limits,
    NotReproduced,
    Surroundings,
    mark,
    minify,
)
from debug.minify_helpers import Lines, graph_for, no_relu, targets


def model_like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for step in range(10):
        x = torch.sin(x @ w) + step
    y = torch.relu(x)
    for _ in range(10):
        y = torch.cos(y) @ w
    return y


def test_single_node_is_found() -> None:
    gm, inputs = graph_for(model_like, torch.randn(7, 5), torch.randn(5, 5))
    listener = Lines()
    result = minify(gm, inputs, no_relu, listener=listener)
    assert targets(result.gm) == [torch.relu] and result.calls == ["torch.relu"]
    assert result.nodes == 3 and len(result.inputs) == 1 and result.inputs[0].numel() == 1
    assert listener.lines[0] == f"Started off with {len(gm.graph.nodes)} nodes"
    assert listener.attempts < 40
    assert result.finished and result.nodes_before == len(gm.graph.nodes)


def test_original_is_left_alone() -> None:
    gm, inputs = graph_for(lambda x: torch.relu(x.add_(1)) * 2, torch.zeros(3))
    before = str(gm.graph)
    inputs[0].zero_()
    minify(gm, inputs, no_relu)
    assert str(gm.graph) == before and torch.equal(inputs[0], torch.zeros(3))


def test_pair_of_nodes_is_found() -> None:
    def check(gm: fx.GraphModule, inputs: list) -> None:
        called = targets(gm)
        if torch.sin in called and torch.relu in called:
            raise RuntimeError("sin and relu do not go together")

    gm, inputs = graph_for(model_like, torch.randn(7, 5), torch.randn(5, 5))
    result = minify(gm, inputs, check)
    assert sorted(t.__name__ for t in targets(result.gm)) == ["relu", "sin"]


def test_does_not_drift_to_another_error() -> None:
    """Every program without the relu fails too, but otherwise: it must not be taken for a success."""

    def check(gm: fx.GraphModule, inputs: list) -> None:
        if torch.relu in targets(gm):
            raise ValueError("relu is not supported")
        raise ValueError("there is nothing to do")

    gm, inputs = graph_for(model_like, torch.randn(3, 5), torch.randn(5, 5))
    result = minify(gm, inputs, check)
    assert targets(result.gm) == [torch.relu]
    assert result.fingerprint.message == "relu is not supported"


def test_failure_that_does_not_show() -> None:
    gm, inputs = graph_for(lambda x: x + 1, torch.ones(2))
    with pytest.raises(NotReproduced, match="does not fail"):
        minify(gm, inputs, no_relu)
    gm, inputs = graph_for(lambda x: torch.relu(x), torch.ones(2))
    with pytest.raises(NotReproduced, match="otherwise"):
        minify(gm, inputs, no_relu, wanted=Fingerprint("raised", "KeyError", "", "something else"))


def test_crash_is_a_failure_like_any_other() -> None:
    def check(gm: fx.GraphModule, inputs: list) -> None:
        mark("run")
        if torch.relu in targets(gm):
            ctypes.string_at(0)

    gm, inputs = graph_for(model_like, torch.randn(3, 5), torch.randn(5, 5))
    result = minify(gm, inputs, check)
    assert targets(result.gm) == [torch.relu]
    assert result.outcome.kind == "crashed" and result.outcome.error == "SIGSEGV" and result.outcome.stage == "run"


def test_hang_is_a_failure_like_any_other() -> None:
    def check(gm: fx.GraphModule, inputs: list) -> None:
        if torch.relu in targets(gm):
            time.sleep(100)

    gm, inputs = graph_for(lambda x: torch.relu(x + 1) * 2, torch.ones(2))
    result = minify(gm, inputs, check, limits=Limits(attempt_seconds=1), simplify=False)
    assert targets(result.gm) == [torch.relu] and result.outcome.kind == "hung"


def test_effects_without_users_are_kept_when_they_matter() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1)
        torch.sin(y)
        return y

    def check(gm: fx.GraphModule, inputs: list) -> None:
        if "add_" in targets(gm):
            raise RuntimeError("no writes, please")

    gm, inputs = graph_for(program, torch.ones(3))
    result = minify(gm, inputs, check)
    assert targets(result.gm) == ["add_"]


def test_results_that_are_no_tensors_stay_whole() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.chunk(x.sin(), 2)
        return torch.relu(a) + b

    def check(gm: fx.GraphModule, inputs: list) -> None:
        gm(*inputs)
        if operator.getitem in targets(gm) and torch.relu in targets(gm):
            raise RuntimeError("chunk then relu")

    gm, inputs = graph_for(program, torch.ones(4))
    result = minify(gm, inputs, check)
    assert [getattr(t, "__name__", t) for t in targets(result.gm)] == ["chunk", "getitem", "relu"]


def test_simplifications() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.leaky_relu(x.t(), 0.37)

    def check(gm: fx.GraphModule, inputs: list) -> None:
        gm(*inputs)
        if torch.nn.functional.leaky_relu in targets(gm):
            raise RuntimeError("no leaks")

    gm, inputs = graph_for(program, torch.randn(40, 30, dtype=torch.float64, requires_grad=True))
    result = minify(gm, inputs, check)
    [value] = result.inputs
    assert value.numel() == 1 and value.dtype is torch.float32 and not value.requires_grad
    [call] = [node for node in result.gm.graph.nodes if node.op == "call_function"]
    assert 0.37 not in call.args and 0.37 not in call.kwargs.values()


def test_sizes_that_matter_stay() -> None:
    def check(gm: fx.GraphModule, inputs: list) -> None:
        gm(*inputs)
        if any(isinstance(v, torch.Tensor) and v.shape[-1] >= 9 for v in inputs):
            raise RuntimeError("too wide")

    gm, inputs = graph_for(lambda x: torch.relu(x + 1), torch.randn(64, 100))
    result = minify(gm, inputs, check)
    assert list(result.inputs[0].shape) == [1, 16]  # the first of the sizes tried that still fails


def test_state_becomes_an_input() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    w = graph.get_attr("weight")
    graph.output((graph.call_function(torch.relu, (graph.call_function(torch.add, (x, w)),)),))
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.randn(4))

    def check(gm: fx.GraphModule, inputs: list) -> None:
        gm(*inputs)
        if torch.add in targets(gm):
            raise RuntimeError("cannot add")

    result = minify(fx.GraphModule(root, graph), [torch.randn(4)], check)
    assert [n.op for n in result.gm.graph.nodes] == ["placeholder", "placeholder", "call_function", "output"]


def test_interrupted_search_does_not_try_again() -> None:
    gm, inputs = graph_for(model_like, torch.randn(3, 5), torch.randn(5, 5))
    tried: dict[str, bool] = {}
    first = Lines()
    minify(gm, inputs, no_relu, tried=tried, listener=first)
    again = Lines()
    result = minify(gm, inputs, no_relu, tried=tried, listener=again)
    assert first.attempts > 3 and again.attempts == 0 and targets(result.gm) == [torch.relu]


def test_time_limit_gives_the_smallest_so_far() -> None:
    gm, inputs = graph_for(model_like, torch.randn(3, 5), torch.randn(5, 5))
    result = minify(gm, inputs, no_relu, limits=Limits(total_seconds=1e-6))
    assert not result.finished and torch.relu in targets(result.gm)


def test_surroundings_are_restored() -> None:
    seen = []

    def backend(gm: fx.GraphModule, inputs: list):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return gm.forward

    gm, inputs = graph_for(lambda x: x + 1, torch.ones(2))
    BackendCheck(backend, surroundings=Surroundings(grad=False, autocast=torch.bfloat16))(gm, inputs)
    BackendCheck(backend)(gm, inputs)
    assert seen == [(False, True), (True, False)]


@pytest.mark.parametrize("seed", range(6))
def test_pieces_compute_what_the_whole_does(seed: int) -> None:
    """Whatever nodes are kept, the piece's results are the whole program's values of those nodes."""
    import random

    from argand.debug.minify.surgery import Program, extract, values_of

    def program(x: torch.Tensor, w: torch.Tensor, n: int) -> tuple:
        a, b = torch.chunk(x @ w, 2, dim=-1)
        c = torch.sin(a).t() * n
        d = c.expand(3, *c.shape).sum(0).view(-1, x.size(0))
        e = torch.where(d > 0, d, b[0, 0])
        return e.sum(), torch.topk(b, 2).values, c.contiguous().relu()

    gm, inputs = graph_for(program, torch.randn(4, 4), torch.randn(4, 6), 3)
    whole = Program(gm, inputs)
    values = values_of(whole)
    rng = random.Random(seed)
    for _ in range(20):
        kept = {node.name for node in whole.calls if rng.random() < 0.5}
        outputs = [node for node in whole.calls if node.name in kept]
        piece = extract(whole, lambda node: node.name in kept, outputs, whole.values)
        if piece is None:
            continue
        results = values_of(piece)
        for node in piece.outputs:
            want, got = values[node.name], results[node.name]
            if isinstance(want, torch.Tensor):
                assert torch.equal(want, got) and want.stride() == got.stride(), node.name


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    from argand.debug.minify.progress import Progress

    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    gm, inputs = graph_for(lambda x: torch.relu(x + 1) * 2, torch.ones(2))
    listener = Progress()
    with listener.showing(len(gm.graph.nodes)):
        minify(gm, inputs, no_relu, listener=listener)
    text = capsys.readouterr().err
    assert "Started off with 5 nodes" in text and "nodes left" in text
