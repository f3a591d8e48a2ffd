"""The traced program: its graph, metadata, origins, constants, structure, and when gradients send it elsewhere."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from opdb_aot import differences, graph_of
from torch import fx, nn

from argand import events
from argand.autograd import needs_autograd, trace_inference, wrap
from argand.backends.aot_eager import aot_eager, run_eagerly
from argand.errors import AutogradError
from argand.passes import verify

aten = torch.ops.aten


def targets(program) -> list:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_nodes_are_functional_and_carry_metadata():
    def fn(x, w):
        y = x @ w
        y.add_(1)
        return y.relu()

    program = trace_inference(graph_of(fn, [torch.ones(2, 3), torch.ones(3, 4)]), [torch.ones(2, 3), torch.ones(3, 4)])
    assert targets(program) == [aten.mm.default, aten.add.Tensor, aten.relu.default]
    verify(program)
    for node in program.graph.nodes:
        if node.op != "output":
            assert node.meta["val"].device.type == "meta"
            assert node.meta["device"] == torch.device("cpu")
            assert node.meta["origin"] is not None


def test_origin_names_the_user_line():
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.relu, (x,))
    made.meta["user_line"] = "model.py:3 in forward: y = torch.relu(x)"
    stacked = graph.call_function(torch.exp, (made,))
    stacked.meta["stack_trace"] = (
        '  File "a.py", line 1, in outer\n    f()\n  File "b.py", line 2, in inner\n    g(x)\n'
    )
    graph.output(stacked)
    program = trace_inference(fx.GraphModule(nn.Module(), graph), [torch.ones(2)])
    relu, exp = (node for node in program.graph.nodes if node.op == "call_function")
    assert relu.meta["origin"].source_node == "relu"
    assert relu.meta["origin"].user_line == "model.py:3 in forward: y = torch.relu(x)"
    assert exp.meta["origin"].user_line == "b.py:2 in inner: g(x)"


def test_error_names_the_user_stack():
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.nonzero, (x,))
    made.meta["stack_trace"] = '  File "a.py", line 7, in outer\n    torch.nonzero(x)\n'
    graph.output(made)
    with pytest.raises(AutogradError) as caught:
        trace_inference(fx.GraphModule(nn.Module(), graph), [torch.ones(2)])
    assert caught.value.where[0].lineno == 7
    assert "torch.nonzero(x)" in str(caught.value)


def test_parameters_are_inputs_read_at_each_call():
    module = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.GELU()).eval().requires_grad_(False))
    x = torch.randn(2, 4)
    program = trace_inference(module, [x])
    assert {spec.name for spec in program.inputs if spec.kind == "constant"} == {"p_0_weight", "p_0_bias"}
    call = wrap(program, run_eagerly(program))
    torch.testing.assert_close(call(x), module(x))
    with torch.no_grad():
        module.get_parameter("0.weight").mul_(2)
    torch.testing.assert_close(call(x), module(x))


def test_buffer_of_the_module_is_written_back():
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.get_attr("n")
    graph.call_method("add_", (n, 1))
    graph.output(graph.call_function(torch.add, (x, n)))
    root = nn.Module()
    root.register_buffer("n", torch.zeros(()))
    module = fx.GraphModule(root, graph)
    call = aot_eager(module, [torch.ones(2)])
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 3.0))
    assert module.n == 2


@pytest.mark.parametrize(
    "result",
    [
        lambda x: {"a": x + 1, "b": [x, None, 3]},
        lambda x: (x + 1, (x * 2, "text")),
        lambda x: [x.exp()],
        lambda x: torch.max(x.view(1, -1), 1),
        lambda x: x.shape,
        lambda x: (),
    ],
)
def test_structure_of_the_result(result):
    x = torch.randn(3)
    got, want = aot_eager(graph_of(result, [x]), [x])(x), result(x)
    assert type(got) is type(want)
    assert differences(got, want) == ""


def test_plain_arguments_are_specialised():
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    graph.output(graph.call_function(torch.mul, (x, n)))
    program = trace_inference(fx.GraphModule(nn.Module(), graph), [torch.ones(2), 3])
    assert program.specialised == {1: 3}
    assert torch.equal(wrap(program, run_eagerly(program))(torch.ones(2), 3), torch.full((2,), 3.0))


def test_attention_keeps_the_fused_kernel():
    q = torch.randn(1, 2, 8, 16)
    fused = aten._scaled_dot_product_flash_attention_for_cpu.default
    for kwargs in ({}, {"is_causal": True}, {"attn_mask": torch.zeros(8, 8)}):
        fn = lambda q, kwargs=kwargs: F.scaled_dot_product_attention(q, q, q, **kwargs)
        assert fused in targets(trace_inference(graph_of(fn, [q]), [q]))
        torch.testing.assert_close(aot_eager(graph_of(fn, [q]), [q])(q), fn(q))


def test_grouped_query_attention():
    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    fn = lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    got = aot_eager(graph_of(fn, [q, k]), [q, k])(q, k)
    torch.testing.assert_close(got, fn(q, k))


def test_graphs_that_need_gradients_are_compiled_for_training():
    weight = torch.randn(3, requires_grad=True)
    module = graph_of(lambda x, w: (x * w).sum(), [torch.ones(3), weight])
    assert needs_autograd(module, [torch.ones(3), weight])
    reasons = []
    remove = events.bus.subscribe(lambda e: reasons.append(e.data["reason"]) if e.name == "fallback" else None)
    try:
        call = aot_eager(module, [torch.ones(3), weight])
    finally:
        remove()
    assert reasons == []
    call(torch.full((3,), 2.0), weight).backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


def test_traced_without_gradients_still_gives_them_when_they_are_on():
    weight = torch.randn(3, requires_grad=True)
    module = graph_of(lambda x, w: (x * w).sum(), [torch.ones(3), weight])
    with torch.no_grad():
        call = aot_eager(module, [torch.ones(3), weight])
        assert not call(torch.ones(3), weight).requires_grad
    assert call(torch.ones(3), weight).requires_grad


def test_ambient_autocast_is_in_the_graph_once():
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    fn = lambda x, w: F.linear(x, w).softmax(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = aot_eager(graph_of(fn, [x, w]), [x, w])
        got, want = call(x, w), fn(x, w)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want)


def test_torch_state_survives_a_failed_trace():
    def fn(x):
        torch.set_grad_enabled(False)
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        return x.nonzero()

    with torch.enable_grad(), pytest.raises(AutogradError):
        trace_inference(graph_of(fn, [torch.ones(2)]), [torch.ones(2)])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert gc.isenabled()


def test_under_inference_mode():
    x = torch.randn(2, 3)
    fn = lambda x: F.layer_norm(F.linear(x, torch.ones(3, 3)), (3,))
    with torch.inference_mode():
        torch.testing.assert_close(aot_eager(graph_of(fn, [x]), [x])(x), fn(x))


def test_tracing_draws_no_random_numbers():
    x = torch.randn(4)
    before = torch.get_rng_state()
    trace_inference(graph_of(lambda x: F.dropout(x) + torch.rand(4), [x]), [x])
    assert torch.equal(before, torch.get_rng_state())


def test_subclass_inputs_are_refused():
    class Mine(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Mine)
    with pytest.raises(AutogradError, match="Mine"):
        trace_inference(graph_of(lambda x: x + 1, [x]), [x])
