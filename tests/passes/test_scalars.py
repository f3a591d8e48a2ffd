"""Numbers in CPU memory beside tensors on a GPU: one copy for all, and results of eager's GPU kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.device_ops import device_ops
from argand.graph.origin import NodeOrigin
from argand.passes.scalars import MIN_USES, move_scalars

aten = torch.ops.aten
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Written:
    """A graph that is written by hand, with inputs on both devices."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.b = Builder(self.graph, SpecTable())
        self.examples: list[torch.Tensor] = []

    def input(self, tensor: torch.Tensor, device: torch.device) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.examples)}")
        node.meta.update(val=tensor.to("meta"), device=device, origin=NodeOrigin())
        self.examples.append(tensor)
        return node

    def moved(self, *results: fx.Node) -> tuple[fx.Graph, int]:
        self.graph.output(results)
        program = AtenProgram(self.graph, [], [], [], {}, None)
        changes = move_scalars(program)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return self.graph, changes

    def run(self) -> Any:
        class Here(fx.Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                return args[0] if target is device_ops().to_device else super().call_function(target, args, kwargs)

        return Here(fx.GraphModule(torch.nn.Module(), self.graph)).run(*self.examples)


def copies(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target is device_ops().to_device]


def mixed(graph: fx.Graph) -> list[fx.Node]:
    """Operations whose operands are on both devices."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target is not device_ops().to_device]
    return [node for node in nodes if len({each.meta["device"] for each in node.all_input_nodes}) > 1]


def test_all_numbers_of_a_step_are_one_copy() -> None:
    w = Written()
    tensors = [w.input(torch.randn(3, n), GPU) for n in range(1, 8)]
    numbers = [w.input(torch.tensor(0.1 * n), CPU) for n in range(1, 8)]
    doubled = [w.b(aten.mul.Tensor, number, 2.0) for number in numbers]
    results = [w.b(aten.add.Tensor, w.b(aten.mul.Tensor, t, s), s) for t, s in zip(tensors, doubled)]
    graph, changes = w.moved(*results)
    assert changes and len(copies(graph)) == 1 and not mixed(graph)
    for place, made in enumerate(w.run()):
        scale = w.examples[7 + place] * 2.0
        assert torch.equal(made, w.examples[place] * scale + scale)


def test_elements_of_a_vector_are_copied_as_that_vector() -> None:
    w = Written()
    tensors = [w.input(torch.randn(n), GPU) for n in range(1, 8)]
    vector = w.input(torch.randn(7), CPU)
    results = [w.b(aten.mul.Tensor, t, w.b(aten.select.int, vector, 0, n)) for n, t in enumerate(tensors)]
    graph, _ = w.moved(*results)
    assert [node.args[0] for node in copies(graph)] == [vector] and not mixed(graph)
    for place, made in enumerate(w.run()):
        assert torch.equal(made, w.examples[place] * w.examples[7][place])


def test_a_quotient_is_a_product_with_the_rounded_reciprocal_as_in_eagers_kernels_for_gpus() -> None:
    for dtype, wide in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        w = Written()
        tensors = [w.input(torch.randn(50).to(dtype), GPU) for _ in range(4)]
        numbers = [w.input(torch.tensor(3.0 + n), CPU) for n in range(4)]
        graph, _ = w.moved(*[w.b(aten.div.Tensor, t, s) for t, s in zip(tensors, numbers)])
        assert not mixed(graph) and not [node for node in graph.nodes if node.target is aten.div.Tensor]
        for place, made in enumerate(w.run()):
            factor = 1.0 / w.examples[4 + place].to(wide)
            assert made.dtype is dtype
            assert torch.equal(made, (w.examples[place].to(wide) * factor).to(dtype))


def test_few_uses_integers_and_numbers_that_wait_for_the_gpu_stay() -> None:
    w = Written()
    x, number = w.input(torch.randn(5), GPU), w.input(torch.tensor(2.0), CPU)
    _, changes = w.moved(*[w.b(aten.mul.Tensor, x, number) for _ in range(MIN_USES - 1)])
    assert changes == 0

    w = Written()
    x, counts = w.input(torch.randn(5), GPU), [w.input(torch.tensor(n), CPU) for n in range(9)]
    _, changes = w.moved(*[w.b(aten.mul.Tensor, x, count) for count in counts])
    assert changes == 0

    w = Written()
    x = w.input(torch.randn(5), GPU)
    sums = [w.b(aten._to_copy.default, w.b(aten.sum.default, x), device=CPU) for _ in range(9)]
    _, changes = w.moved(*[w.b(aten.mul.Tensor, x, each) for each in sums])
    assert changes == 0


def test_numbers_that_the_graph_says_are_for_kernels_to_compute() -> None:
    """What vmap's rules make of Python's numbers."""
    w = Written()
    x = w.input(torch.randn(5), GPU)
    said = [w.b(aten.full.default, [], 0.1 * n, dtype=torch.float64, device=CPU) for n in range(9)]
    cast = [w.b(aten._to_copy.default, each, dtype=torch.float32) for each in said]
    _, changes = w.moved(*[w.b(aten.mul.Tensor, x, each) for each in cast])
    assert changes == 0


def test_numbers_that_are_computed_later_are_in_the_same_copy() -> None:
    w = Written()
    x = w.input(torch.randn(5), GPU)
    early = [w.input(torch.tensor(float(n)), CPU) for n in range(3)]
    results = [w.b(aten.mul.Tensor, x, each) for each in early]
    late = [w.b(aten.add.Tensor, each, 1.0) for each in early]
    results += [w.b(aten.mul.Tensor, x, each) for each in late]
    graph, _ = w.moved(*results)
    assert len(copies(graph)) == 1 and not mixed(graph)
    assert all(torch.equal(made, w.examples[0] * (n % 3 + n // 3)) for n, made in enumerate(w.run()))


def test_a_copy_on_the_cpu_is_a_copy() -> None:
    x = torch.randn(4)
    made = device_ops().to_device(x, device=CPU)
    assert torch.equal(made, x) and made.data_ptr() != x.data_ptr()
