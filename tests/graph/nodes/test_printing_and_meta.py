"""Graphs as text that runs; user lines; stride arithmetic; builder and interning."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import argand
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import dense_strides, is_dense, memory_order, overlaps
from argand.graph.nodes.meta import user_line, user_stack
from argand.graph.nodes.printing import graph_function, graph_source, readable, table

aten = torch.ops.aten


def small_graph() -> tuple[fx.Graph, SpecTable]:
    graph, specs = fx.Graph(), SpecTable()
    x = graph.placeholder("x")
    x.meta.update(val=torch.empty(2, 3, device="meta"), device=torch.device("cpu"))
    b = Builder(graph, specs)
    y = b(aten.add.Tensor, x, 1.5)
    top, place = b(aten.max.dim, y, 1)
    graph.output((y, top, place))
    return graph, specs


def test_source_runs_and_says_types():
    graph, _ = small_graph()
    text = readable(graph)
    assert "f32[2, 3][3, 1]" in text
    x = torch.randn(2, 3)
    y, top, place = graph_function(graph, {})(x)
    assert torch.equal(y, x + 1.5)
    assert torch.equal(top, (x + 1.5).max(1).values) and torch.equal(place, (x + 1.5).max(1).indices)


def test_values_are_dropped_after_their_last_use():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.exp.default, (x,))
    z = graph.call_function(aten.exp.default, (y,))
    graph.output((z,))
    source = graph_source(graph)[0]
    assert "del x" in source and f"del {y.name}" in source and f"del {z.name}" not in source


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, True, 2, 1 + 2j])
def test_numbers_print_as_themselves(value):
    graph = fx.Graph()
    graph.output((graph.call_function(aten.full.default, ([1], value), {"dtype": torch.complex64}),))
    (made,) = graph_function(graph, {})()
    assert torch.equal(torch.view_as_real(made).isnan(), torch.view_as_real(torch.full([1], value + 0j)).isnan())
    if value == value:
        assert made.item() == value


def test_table_has_a_row_per_node():
    graph, _ = small_graph()
    assert len(table(graph).splitlines()) == len(graph.nodes) + 2


def test_backends_print_their_graph_without_other_packages(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tabulate", None)

    def backend(gm, example_inputs):
        gm.graph.print_tabular()
        return gm.forward

    argand.compile(lambda a: a.abs() + 1, backend=backend)(torch.ones(2))
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == "opcode" and rows[2:] == ["placeholder", "call_function", "call_function", "output"]


def test_user_stack_is_outermost_first():
    node = fx.Graph().placeholder("x")
    assert user_line(node) == "" and user_stack(node) == ()
    node.meta["stack_trace"] = '  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\n    h()\n'
    assert [line.filename for line in user_stack(node)] == ["a.py", "b.py"]
    assert user_line(node) == "b.py:2 in g: h()"


def test_specs_are_interned():
    specs = SpecTable()
    made = specs.make((2, 3), (3, 1), 0, torch.float32, torch.device("cpu"))
    assert specs.of_meta(torch.empty(2, 3, device="meta"), torch.device("cpu")) is made
    assert specs.of_meta(torch.empty(3, 2, device="meta").t(), torch.device("cpu")) is not made


def test_builder_tells_numbers_of_different_types_apart():
    graph, specs = small_graph()
    x = next(iter(graph.nodes))
    x.meta["val"] = torch.empty(2, dtype=torch.int64, device="meta")
    b = Builder(graph, specs)
    assert b(aten.add.Tensor, x, 1).meta["val"].dtype is torch.int64
    assert b(aten.add.Tensor, x, 1.0).meta["val"].dtype is torch.float32


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_dense_strides_of_permuted_tensors(sizes, data):
    order = data.draw(st.permutations(range(len(sizes))))
    x = torch.empty(sizes).permute(order)
    size, stride = tuple(x.shape), x.stride()
    assert is_dense(size, stride)
    assert not overlaps(size, stride)
    made = dense_strides(size, stride)
    assert all(n == 1 or a == b for n, a, b in zip(size, made, stride))
    assert sorted(memory_order(size, stride)) == list(range(len(size)))


def test_holes_and_overlaps():
    assert not is_dense((3, 2), (4, 1)) and not overlaps((3, 2), (4, 1))
    assert overlaps((3, 4), (0, 1)) and overlaps((3, 2), (1, 1))
    assert not overlaps((0, 4), (0, 1))
