"""Nodes that are made without torch's own functions have the names that those would give."""

from __future__ import annotations

import operator

import pytest
from torch import fx

from argand.graph import compat

LONG = "l_self_modules_encoder_modules_layer_modules_attention_weight"
WISHES = [
    [LONG, LONG, LONG],
    [f"{LONG}_1", LONG, f"{LONG}_1", LONG, f"{LONG}_2"],
    [f"{LONG}_7", f"{LONG}_7", LONG, f"{LONG}_8", f"{LONG}_8"],
    [f"{LONG}_007", f"{LONG}_007", f"{LONG}_7"],
    [f"{LONG}__3", f"{LONG}_", f"{LONG}__3", f"{LONG}_3_4", f"{LONG}_3"],
    [f"{LONG}.x", f"{LONG}.x", f"9{LONG}", f"{LONG}é", f"_{'1' * 50}", "_" * 50, "_" * 50],
    ["mul", "mul", "input", "int", "x_1", "x", "x_1"],
    ["mm_12", "mm", "mm_12", "mm_007", "mm_7", "mm"],
    ["sum", "sum_1", "and_1", "and", "for", "sum_3", "sum", "sum_3"],
    ["mul", "mul", "mul", "mul_2", "mul", "mul_5", "mul", "mul", "mul_5"],
    ["x_3", "x", "x", "x", "x_9", "x", "x_4", "x", "sum", "sum", "sum_1", "sum"],
    ["a__1", "a_", "a__1", "x_1_2", "x_1", "_1", "é_1", "1_2", "x-1_2"],
]


@pytest.mark.parametrize("wishes", WISHES)
def test_names(wishes: list[str]) -> None:
    own, torchs = fx.Graph(), fx.Graph()
    for wish in wishes:
        made = compat.new_node(own, operator.add, (1, 2), {}, wish)
        same = torchs.create_node("call_function", operator.add, (1, 2), {}, wish)
        assert made.name == same.name


@pytest.mark.parametrize("name", [LONG, "x", "x_1"])
def test_copies(name: str) -> None:
    graph = fx.Graph()
    given = graph.placeholder(name, type_expr=int)
    given.meta["val"] = 3
    total = graph.create_node("call_function", operator.add, (given, [given, 2]), {}, name)
    graph.output((total,))
    own, torchs = fx.Graph(), fx.Graph()
    for made, copy in ((own, compat.copy_node), (torchs, fx.Graph.node_copy)):
        env: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            env[node] = copy(made, node, env.__getitem__)
    assert str(own) == str(torchs)
    assert [(n.op, n.name, n.type, n.meta) for n in own.nodes] == [(n.op, n.name, n.type, n.meta) for n in torchs.nodes]
    own.lint()
    assert own.find_nodes(op="placeholder") == [next(iter(own.nodes))]
