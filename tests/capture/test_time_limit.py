"""`config.capture_time_limit`: no capture, trace or schedule takes longer, and the program stays right."""

from __future__ import annotations

import time
import warnings

import pytest
import torch

import argand
from argand.config import config
from argand.graph import time_limit


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

    with config.patch(capture_time_limit=1e-6 + 0.0), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        from argand.backends.aot_eager import aot_eager

        graph = torch.fx.symbolic_trace(f)
        run = aot_eager(graph, [torch.ones(3)])
        assert torch.equal(run(torch.ones(3)), f(torch.ones(3)))
    assert any("capture_time_limit" in str(each.message) for each in heard)
