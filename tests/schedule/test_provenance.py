"""Which ATen nodes the lines of loop bodies and of generated code stand for, as tables for traces."""

from __future__ import annotations

import torch
from loop_programs import Builder, softmax

import argand
from argand import events
from argand.codegen.triton.kernel import generate
from argand.ir.loops import Origin, statements_of
from argand.ir.target import gpu
from argand.schedule.pipeline import schedule
from argand.schedule.provenance import code_lines


def tables(function, *args):
    """Artifact -> [(line, nodes)] of a compiled function."""
    texts, lines = {}, {}

    def sink(event):
        if event.name == "provenance_lines":
            lines.update(event.payload())
        else:
            texts[{"output_code": "inductor_output_code"}.get(event.name, event.name)] = event.text()

    events.bus.subscribe(sink, ("provenance_lines", "output_code", "ir_post_fusion"))
    try:
        argand.compile(function)(*args)
    finally:
        events.bus.unsubscribe(sink)
    return {
        name: [(line, table.get(str(number), [])) for number, line in enumerate(texts[name].split("\n"), 1)]
        for name, table in lines.items()
    }


def test_statements_belong_to_the_node_of_the_comment_above():
    made = tables(lambda x: (x.relu() + 1).sum(-1), torch.randn(30, 50))
    for line, nodes in made["ir_post_fusion"]:
        if " ops." in line and not line.startswith("#"):
            assert nodes and line.endswith(f"  # {nodes[0]}"), line
        elif line.startswith("class "):
            assert nodes == ["relu", "add", "sum_1"]
    code = made["inductor_output_code"]
    assert all(nodes == ["relu"] for line, nodes in code if "auto tmp" in line and "maximum(" in line)
    assert all(nodes for line, nodes in code if line.strip().startswith(("auto tmp", "acc", "out_ptr0[")))
    heads = [nodes for line, nodes in code if line.startswith('extern "C"')]
    calls = [nodes for line, nodes in code if line.startswith("    cpp_fused")]
    assert heads == calls == [["relu", "add", "sum_1"]]
    silent = ("import", "for", "}", "del", "return", "#define", "const i64")
    assert not any(nodes for line, nodes in code if line.strip().startswith(silent))


def test_a_kernel_that_several_loops_share_belongs_to_all_of_them():
    xs = [torch.randn(40000) for _ in range(3)]
    code = tables(lambda xs: [torch.tanh(x * 2) for x in xs], xs)["inductor_output_code"]
    calls = [nodes for line, nodes in code if line.startswith("    cpp_fused")]
    assert calls == [["mul", "tanh"], ["mul_1", "tanh_1"], ["mul_2", "tanh_2"]]
    (head,) = [nodes for line, nodes in code if line.startswith('extern "C"')]
    assert head == ["mul", "mul_1", "mul_2", "tanh", "tanh_1", "tanh_2"]
    assert [nodes for line, nodes in code if "= tanh(" in line][-1] == ["tanh", "tanh_1", "tanh_2"]


def test_calls_of_libraries_belong_to_the_nodes_above_them():
    with argand.config.patch({"cpp.own_products": False}):
        made = tables(lambda x, y: (x @ y).relu(), torch.randn(64, 64), torch.randn(64, 64))
    code = made["inductor_output_code"]
    assert [nodes for line, nodes in code if line.startswith("    torch_mm_out(")] == [["mm"]]


def test_positions_of_a_block_belong_to_no_node():
    b = Builder()
    made = schedule(b.program(softmax(b, b.input(5, 20000))), targets=lambda _: gpu(132))
    text = generate(made.kernels(), 132).text
    table = code_lines(text, made)
    lines = [(line, table.get(str(number), [])) for number, line in enumerate(text.split("\n"), 1)]
    kernel = lines[next(number for number, (line, _) in enumerate(lines) if line.startswith("def triton_")) :]
    origins = {v.origin for plan in made.kernels() for s in plan.stages for v in statements_of(s.body)}
    assert all(isinstance(origin, Origin) for origin in origins)
    statements = [nodes for line, nodes in kernel if line.strip().startswith(("tmp", "acctmp", "tl.store"))]
    positions = [nodes for line, nodes in kernel if line.strip().startswith(("x = ", "r0 = ", "rmask0 = "))]
    assert len(statements) > 5 and all(statements)
    assert positions and not any(positions)
