"""The program as a whole: what becomes a buffer, outputs and mutations, ATen kernels, dumps, the verifier, errors."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check, graph_of, run_lowered

import argand
from argand import events
from argand.autograd import trace_inference
from argand.errors import InternalError, LoweringError
from argand.graph.sizes.expr import Const, Var
from argand.ir.interpret import interpret
from argand.ir.loops import ExternNode, LoopNode, TensorRef, statements_of
from argand.ir.target import on_cpu
from argand.lower import lower
from argand.lower.dump import dump
from argand.lower.lowerings import REGISTRY
from argand.lower.registry import Entry
from argand.lower.verify import verify


def lowered(function, *args):
    gm, tensors = graph_of(function, args, {})
    return lower(trace_inference(gm, tensors), check=True)


# --- what becomes a buffer


def test_pointwise_chain_is_one_nest():
    run = check(lambda x, y: ((x + y) * 2 - y).relu().sigmoid() * x, torch.randn(4, 5), torch.randn(5), loops_only=True)
    assert len(run.loops) == 1


def test_shared_cheap_value_is_computed_again():
    run = check(lambda x: (x * 2).sum(0) + (x * 2 + 1).sum(0), torch.randn(4, 5), loops_only=True)
    assert all(node.outputs != () for node in run.loops) and len(run.loops) == 3


def test_shared_expensive_value_is_stored():
    def function(x):
        y = x.exp()
        return y.sum(0), y.amax(0)

    run = check(function, torch.randn(4, 5), loops_only=True)
    assert sum(s.op == "exp" for node in run.loops for s in node.body.statements) == 1


def test_value_is_stored_before_it_is_broadcast():
    run = check(lambda x, y: x.exp().log1p() * y, torch.randn(1, 64), torch.randn(128, 64), loops_only=True)
    assert [[str(s) for s in node.body.sizes] for node in run.loops] == [["64"], ["128", "64"]]
    run = check(lambda x, y: (x + 1) * y, torch.randn(1, 64), torch.randn(128, 64), loops_only=True)
    assert len(run.loops) == 1


def test_long_expressions_are_cut():
    def function(*inputs):
        total = inputs[0]
        for x in inputs[1:]:
            total = total * 0.5 + x
        return total

    run = check(function, *[torch.randn(3, 4) for _ in range(60)], loops_only=True)
    assert len(run.loops) > 1
    assert all(len(node.body.statements) < 200 for node in run.loops)


def test_deep_chains_do_not_recurse_without_end():
    def function(x):
        for _ in range(700):
            x = x + 1
        return x

    def views(x):
        x = x + 1
        for _ in range(700):
            x = x.transpose(0, 1)
        return x * 2

    check(function, torch.randn(3), loops_only=True)
    check(views, torch.randn(3, 4), loops_only=True)


def test_diamonds_are_recorded_once():
    def function(x):
        for _ in range(40):
            x = x + x
        return x

    run = check(function, torch.zeros(4), loops_only=True)
    assert sum(len(node.body.statements) for node in run.loops) < 120


# --- outputs, aliases, mutation


def test_outputs_do_not_live_in_inputs():
    x = torch.randn(3, 4)
    program = lowered(lambda a: (a.clone(), a.contiguous().clone(), a * 1), x)
    buffers = [ref.buffer for ref in program.outputs if isinstance(ref, TensorRef)]
    assert len(set(buffers)) == len(buffers) and not set(buffers) & set(program.inputs)


def test_output_views_share_their_base():
    def function(a):
        b = a.exp()
        return b, b[1:], b.t()

    check(function, torch.randn(3, 4))


def test_mutated_inputs():
    def function(a, b):
        a.add_(b)
        b.mul_(2)
        return a + b

    x, y = torch.randn(3), torch.randn(3)
    run = check(function, x, y)
    assert torch.equal(run.inputs[0], x + y) and torch.equal(run.inputs[1], y * 2)


def test_swapped_inputs():
    def function(a, b):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        return a - b

    x, y = torch.randn(3), torch.randn(3)
    run = check(function, x, y)
    assert torch.equal(run.inputs[0], y) and torch.equal(run.inputs[1], x)


def test_unused_work_is_dropped():
    program = lowered(lambda a: (a.sum(), torch.cumsum(a, 0), a + 1)[2], torch.randn(5))
    assert len(program.nodes) == 1
    program = lowered(lambda a: (torch.rand(3), a + 1)[1], torch.randn(5))
    assert len(program.nodes) == 2  # drawing random numbers is an effect


# --- ATen kernels


def test_reasons_and_events():
    seen = []
    stop = events.bus.subscribe(lambda event: seen.append(event))
    try:
        program = lowered(lambda a: torch.cumsum(a @ a, 0), torch.randn(3, 3))
    finally:
        stop()
    matmul, cumsum = program.nodes
    assert matmul.out_variant == "torch.mm" and matmul.reason == ""
    assert cumsum.out_variant is None and cumsum.reason == "no lowering"
    (fallback,) = [event for event in seen if event.name == "fallback"]
    assert fallback.data["op"] == "aten.cumsum.default" and fallback.data["reason"] == "no lowering"
    assert [event.text() for event in seen if event.name == "ir_pre_fusion"][0].startswith("buf0: ExternKernel")


def test_out_variants():
    a, b, c = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    program = lowered(
        lambda x, y, z: (torch.bmm(x, y), torch.baddbmm(z, x, y), torch.addmm(z[0], x[0], y[0]), x[0] @ y[0]), a, b, c
    )
    assert [n.out_variant for n in program.nodes] == ["torch.bmm", "torch.baddbmm", "torch.addmm", "torch.mm"]


def test_several_results():
    x = torch.randn(4, 6)
    run = check(lambda a: torch.topk(a * 2, 2)[0] + 1, x)
    (extern,) = run.externs
    assert extern.outputs[1] is None  # nobody reads the positions
    check(lambda a: torch.sort(a, 1), x, loops_only=False)
    check(lambda a: F.max_pool2d(a[None, None], 2).relu(), x)


def test_convolution_keeps_layouts():
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        run = check(lambda a, b: F.conv2d(a.relu(), b, padding=1).sigmoid(), x.to(memory_format=layout), w, passes=True)
        (conv,) = run.externs
        assert [int(str(s)) for s in conv.args[0].stride] == list(x.to(memory_format=layout).stride())


def test_other_dtypes_stay_in_aten():
    x = torch.randn(3, 4)
    check(lambda a: torch.view_as_real(torch.complex(a, a) * 2), x, loops_only=False)
    check(lambda a: torch.fft.rfft(a).abs() + 1, x)


# --- text and checks


def test_dump_has_the_documented_form():
    text = dump(lowered(lambda x1, x2: torch.cat([torch.maximum(x2, torch.neg(x1))]), *_foo()))
    lines = [line.rstrip() for line in text.splitlines()]
    expected = [
        "buf0: SchedulerNode(ComputedBuffer)",
        "buf0.writes = [MemoryDep('buf0', 8*z0 + z1, {z0: 30, z1: 8})]",
        "buf0.unmet_dependencies = []",
        "buf0.users = [NodeUser(node=OUTPUT, can_inplace=False)]",
        "buf0.group.device = cpu",
        "buf0.group.iteration = ((30, 8), ())",
        "buf0.sizes = ([30, 8], [])",
        "class buf0_loop_body:",
        "    var_ranges = {z0: 30, z1: 8}",
        "    index0 = 8*z0 + z1",
        "    index1 = z1",
        "    def body(self, ops):",
        "        get_index = self.get_index('index0')",
        "        load = ops.load('arg1_1', get_index)",
        "        neg = ops.neg(load_1)",
        "        maximum = ops.maximum(load, neg)",
        "        store = ops.store('buf0', get_index_2, maximum, None)",
        "        return store",
    ]
    position = 0
    for line in expected:
        assert line in lines[position:], line
        position = lines.index(line, position)


def _foo():
    return torch.randint(256, (1, 8), dtype=torch.uint8), torch.randint(256, (30, 8), dtype=torch.uint8)


def test_dump_of_everything_else():
    def function(a, i):
        padded = F.pad(a, (1, 0))
        return torch.cumsum(padded, 0), a[i].sum(1), torch.cat([a, a.exp()], 1), F.pad(a, (0, 1)).exp()

    text = dump(lowered(function, torch.randn(3, 4), torch.tensor([0, 1])))
    for part in (
        "ExternKernelSchedulerNode",
        "node.reason = 'no lowering'",
        "masked_subblock1",
        "ops.indirect(",
        "ops.reduction(torch.float32, torch.float32, 'sum', ",
        "WeakDep(",
        "# cumsum = torch.ops.aten.cumsum.default(constant_pad_nd, 0)",
    ):
        assert part in text


def test_origins_name_the_node_and_the_user_line():
    program = lowered(lambda a: (a + 1).relu(), torch.randn(3))
    (node,) = program.nodes
    assert [origin.fx_node for origin in node.origins] == ["relu", "add"] or len(node.origins) == 2
    assert any(origin.fx_code.startswith("relu = torch.ops.aten.relu.default(add)") for origin in node.origins)


def test_comments_of_a_node_of_many_arguments_stay_short():
    def comments(count):
        program = lowered(lambda *tensors: torch.cat([tensor.exp() for tensor in tensors]), *[torch.randn(3)] * count)
        return [origin.comment for node in program.nodes for origin in node.origins if origin.fx_node == "cat"]

    assert "exp_1, exp_2]" in comments(3)[0]
    assert "exp_14, ..., exp_63]" in comments(64)[0]


def test_masked_blocks_are_statements_too():
    program = lowered(lambda a: F.pad(a, (1, 1)) * 2, torch.randn(3))
    (node,) = program.nodes
    assert "load" in [s.op for s in statements_of(node.body)]
    assert "load" not in [s.op for s in node.body.statements]


def _break(program, change):
    node = next(node for node in program.nodes if isinstance(node, LoopNode))
    change(program, node)
    with pytest.raises(InternalError) as caught:
        verify(program)
    assert "op0" in str(caught.value)
    return str(caught.value)


def test_verifier():
    def fresh():
        return lowered(lambda a: (a + 1).exp().sum(0), torch.randn(3, 4))

    def unknown_variable(program, node):
        load = node.body.statements[0]
        node.body.statements[0] = dataclasses.replace(load, args=(load.args[0], Var("q")))

    def unordered(program, node):
        node.body.statements.reverse()

    def undeclared(program, node):
        node.outputs = ()

    def missing(program, node):
        del program.buffers["arg0_1"]
        program.inputs.clear()

    def op(program, node):
        node.body.statements[0] = dataclasses.replace(node.body.statements[0], op="frobnicate")

    def sizes(program, node):
        node.body.sizes = (*node.body.sizes, Const(3))

    for change, words in (
        (unknown_variable, "not variables of the loop"),
        (unordered, "before it is defined"),
        (undeclared, "declares"),
        (missing, "nothing has written"),
        (op, "unknown op"),
        (sizes, "as many variables as sizes"),
    ):
        assert words in _break(fresh(), change)


def test_failing_rule_is_reported(monkeypatch):
    def broken(ctx, x):
        raise ValueError("boom")

    monkeypatch.setitem(REGISTRY.entries, torch.ops.aten.exp.default, Entry(broken))
    with pytest.raises(LoweringError, match=r"aten.exp.default\(arg0_1\) failed: ValueError: boom"):
        lowered(lambda a: a.exp(), torch.randn(3))


def test_registering_twice_is_refused():
    with pytest.raises(InternalError, match="two lowering rules"):
        REGISTRY.add(torch.ops.aten.exp.default, Entry(lambda ctx, x: x))
    with pytest.raises(InternalError, match="two lowering rules"):
        REGISTRY.add(torch.ops.aten.mm.default, Entry(lambda ctx, x: x))


def test_interpreter_checks_what_it_runs():
    gm, tensors = graph_of(lambda a: a + 1, (torch.randn(3),), {})
    program = lower(trace_inference(gm, tensors))
    (node,) = program.nodes
    load = node.body.statements[0]
    node.body.statements[0] = wrong = dataclasses.replace(load, args=(load.args[0], load.args[1] + 9))
    node.body.statements = [
        wrong if s is load else dataclasses.replace(s, args=tuple(wrong if a is load else a for a in s.args))
        for s in node.body.statements
    ]
    with pytest.raises(InternalError, match="out of bounds"):
        interpret(program, tensors)


def test_run_is_repeatable():
    gm, tensors = graph_of(lambda a: (a * 2).softmax(-1), (torch.randn(3, 4),), {})
    first, second = run_lowered(gm, tensors), run_lowered(gm, tensors)
    assert dump(first.program) == dump(second.program)


def test_shared_result_of_several_is_stored():
    """A lazy member of a tuple is placed like any other value: not computed once per user."""

    def function(g, x, m, s, w):
        y = torch.ops.aten.native_layer_norm_backward(g, x, [16], m, s, w, None, [True, False, False])[0]
        return y.sum(0), y.amax(0)

    rows = [torch.randn(4, 16), torch.randn(4, 16), torch.randn(4, 1), torch.rand(4, 1), torch.randn(16)]
    run = check(function, *rows, loops_only=True)
    stored = [node for node in run.loops if [str(s) for s in node.body.sizes] == ["4", "16"]]
    assert len(stored) == 1
    reads = [{s.args[0] for s in node.body.statements if s.op == "load"} for node in run.loops[-2:]]
    assert reads == [set(stored[0].outputs)] * 2


def test_unsafe_split_is_a_view():
    run = check(lambda x: torch.unsafe_split(x * 2, 2, 1)[1] + 1, torch.randn(3, 6), loops_only=True)
    assert len(run.loops) == 1


# --- rows that are added to products: by the loops that read them where there are some, by the library else

ROWS = torch.randn(3, 5, 8), torch.randn(16, 8), torch.randn(16)


def products(function, *args, on=None):
    """The library's products of a function, whose results are compared with eager's."""
    gm, tensors = graph_of(function, args, {})
    program = lower(trace_inference(gm, tensors), targets=on or on_cpu(1), check=True)
    for got, want in zip(interpret(program, tensors), [function(*args)], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return [str(node.target) for node in program.nodes if isinstance(node, ExternNode)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda x, w, b: F.linear(x, w, b).amax(-1),
        lambda x, w, b: F.linear(x, w, b).view(3, 5, 4, 4).transpose(1, 2).relu(),
        lambda x, w, b: F.linear(x, w, b)[:, 1:].sum(-1) + F.linear(x, w, b)[:, 0, :1],
        lambda x, w, b: torch.addmm(b, x[0], w.t()).exp(),
    ],
    ids=["pointwise", "maximum", "views", "slices", "addmm"],
)
def test_loops_add_the_row(function):
    assert set(products(function, *ROWS)) == {"aten.mm.default"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: F.linear(F.linear(x, w, b), w.t(), b[:8]),
        lambda x, w, b: torch.addmm(b[:3, None], x[0, :3], w.t()).exp(),
        lambda x, w, b: torch.addmm(b[:1], x[0], w.t()).exp(),
        lambda x, w, b: torch.addmm(b, x[0], w.t(), beta=0.5).exp(),
        lambda x, w, b: torch.addmm(b, x[0], w.t(), alpha=2.0).exp(),
    ],
    ids=["a result", "a product", "a column", "a number", "beta", "alpha"],
)
def test_the_library_adds_it(function):
    assert set(products(function, *ROWS)) == {"aten.addmm.default"}


def test_a_sum_that_is_rounded_once_stays():
    given = [each.bfloat16() for each in ROWS]
    gm, tensors = graph_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), given, {})
    program = lower(trace_inference(gm, tensors), targets=on_cpu(1), check=True)
    assert [str(node.target) for node in program.nodes if isinstance(node, ExternNode)] == ["aten.addmm.default"]


def test_without_a_target_nothing_is_known_of_the_library():
    assert products(lambda x, w, b: F.gelu(F.linear(x, w, b)), *ROWS, on=lambda device: None) == ["aten.addmm.default"]


def test_training():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.LayerNorm(8))
    compiled = argand.compile(model, fullgraph=True)
    x = torch.randn(4, 8)
    for got, want in zip(*([call(x), *torch.autograd.grad(call(x).pow(3).sum(), [*model.parameters()])]
                           for call in (compiled, model)), strict=True):  # fmt: skip
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
