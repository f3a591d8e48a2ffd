"""`config.capture_time_limit` and `config.prepare_time_limit`: nothing takes longer, and the program stays right."""

from __future__ import annotations

import gc
import time
import warnings

import pytest
import torch

import argand
from argand.backends.aot_eager import aot_eager
from argand.config import config
from argand.graph import time_limit
from argand.graph.origin import NodeOrigin


def endless(x):
    for i in range(20_000):
        x = x + i
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_that_takes_too_long_breaks_and_is_right(backend):
    x = torch.zeros(3)
    with config.patch(capture_time_limit=0.3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = argand.compile(endless, backend=backend)
        begin = time.thread_time()
        assert torch.equal(compiled(x), endless(x))
        assert time.thread_time() - begin < 6


def test_the_break_says_why():
    with config.patch(capture_time_limit=0.2):
        found = argand.explain(endless)(torch.zeros(3))
    kinds = [reason.kind for reason in found.break_reasons]
    assert "capture takes too long" in kinds
    said = next(reason for reason in found.break_reasons if reason.kind == "capture takes too long")
    assert "capture_time_limit" in said.explanation and "0.2 s" in said.explanation


def test_one_torch_call_of_many_steps_is_ended():
    """Metadata of a recurrent layer on plain meta tensors runs step by step, in C++."""
    layer = torch.nn.GRU(3, 4).to("meta")
    x = torch.empty(200_000, 2, 3, device="meta")
    weights = [p.detach() for p in layer.parameters()]
    state = torch.empty(1, 2, 4, device="meta")
    begin = time.thread_time()
    with pytest.raises(time_limit.OutOfTime), time_limit.limited(0.3):
        time_limit.run_checked(torch.gru, (x, state, weights, True, 1, 0.0, False, False, False), {})
    assert time.thread_time() - begin < 3


def test_no_limit():
    with time_limit.limited(1e-9), time_limit.limited(0):
        time_limit.check()
    with time_limit.limited(1e-9), pytest.raises(time_limit.OutOfTime):
        for _ in range(1000):
            time_limit.check()


def test_a_graph_that_takes_too_long_to_prepare_runs_with_eagers_kernels():
    def f(x):
        for i in range(300):
            x = (x * 1.5 + i).sin()
        return x

    run, said = prepared(torch.fx.symbolic_trace(f), prepare_time_limit=1e-6)
    assert torch.equal(run(torch.ones(3)), f(torch.ones(3)))
    assert "prepare_time_limit" in said and "config.capture_time_limit" not in said


def prepared(graph, **settings):
    """What aot_eager makes of a graph, and what was warned of."""
    with config.patch(**settings), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = aot_eager(graph, [torch.ones(3)])
    return run, "\n".join(str(each.message) for each in heard)


def chain(operations, special=None):
    """A graph of so many operations; `special` is one of them, in the middle."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for number in range(operations):
        value = graph.call_function(special if special and number == operations // 2 else torch.sin, (value,))
    graph.output(value)
    return torch.fx.GraphModule({}, graph)


def test_captures_limit_is_not_the_backends():
    run, said = prepared(chain(300), capture_time_limit=1e-6)
    assert not said and torch.equal(run(torch.ones(3)), chain(300)(torch.ones(3)))


def test_the_backends_limit_is_not_captures():
    with config.patch(prepare_time_limit=1e-6):
        found = argand.explain(lambda x: x.sin().cos())(torch.ones(3))
    assert found.graph_break_count == 0


@pytest.fixture
def no_garbage_of_others():
    """What other tests have left in this process is not looked at while time is taken."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_graph_has_time_in_proportion_to_its_operations(no_garbage_of_others):
    """A part of the time that it takes is too little, though four thousand operations have that four times.

    A small part: what other tests have asked for, such as texts of graphs, takes time that is not limited.
    """
    graph = chain(4000)
    times = []
    for _ in range(3):  # the least: what is done once in a process is not counted
        begin = time.thread_time()
        prepared(graph, prepare_time_limit=0.0)
        times.append(time.thread_time() - begin)
    taken = min(times)
    assert not prepared(graph, prepare_time_limit=2 * taken)[1]
    said = prepared(graph, prepare_time_limit=taken / 64)[1]
    assert "4,002 operations were not enough" in said, times


def slow(x):
    for _ in range(20000):
        x = x + 1
    return x


def test_the_operation_that_took_the_time_is_named():
    graph = chain(2000, slow)
    run, said = prepared(graph, prepare_time_limit=0.05)
    assert "went to the operation slow" in said
    assert torch.equal(run(torch.ones(3)), graph(torch.ones(3)))


def test_operations_are_named_with_their_line():
    graph = chain(3, slow)
    for node in graph.graph.nodes:
        node.meta["user_line"] = f"train.py:7 in forward: {node.name}"
    assert "slow (train.py:7 in forward: slow)" in prepared(graph, prepare_time_limit=0.02)[1]


def test_what_is_no_operations_work_has_the_time_of_the_whole():
    origin = NodeOrigin("sin")
    with config.patch(prepare_time_limit=0.05), time_limit.preparing(100_000):
        time_limit.begin(origin)
        time_limit.begin(None)
        begin = time.thread_time()
        while time.thread_time() < begin + 0.1:
            time_limit.check()
        time_limit.begin(origin)
        with pytest.raises(time_limit.OutOfTime, match="operation sin"):
            while time.thread_time() < begin + 3:
                time_limit.check()


def test_a_backward_that_takes_too_long_runs_with_eagers_kernels():
    def f(x):
        for _ in range(20):
            x = x.sin() * 2
        return x.sum()

    x = torch.ones(3, requires_grad=True)
    compiled = argand.compile(f, backend="native")
    loss = compiled(x)
    with config.patch(prepare_time_limit=1e-6), pytest.warns(UserWarning, match="preparing the backward took more CPU"):
        loss.backward()
    wanted = torch.ones(3, requires_grad=True)
    f(wanted).backward()
    torch.testing.assert_close(x.grad, wanted.grad)
