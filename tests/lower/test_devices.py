"""Graphs with tensors on two devices: each loop runs on one of them, and what mixes them is an ATen kernel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_helpers import graph_of

from argand.autograd import trace_inference
from argand.ir.loops import ExternNode, LoopNode, Program
from argand.ir.target import Target, cpu, gpu
from argand.lower import lower
from argand.schedule.pipeline import schedule
from argand.schedule.verify import verify

META = torch.device("meta")  # stands for a GPU: nothing is run


def target_of(device: torch.device) -> Target:
    return gpu(4) if device == META else cpu(1)


def lowered(function: Callable[..., Any], *args: torch.Tensor) -> Program:
    gm, tensors = graph_of(function, args, {})
    program = lower(trace_inference(gm, tensors), check=True)
    verify(schedule(program, targets=target_of))
    return program


def devices(program: Program) -> list[str]:
    return [program.buffers[node.outputs[0]].device.type for node in program.nodes if isinstance(node, LoopNode)]


def elsewhere(*size: int) -> torch.Tensor:
    return torch.ones(size, device=META)


def test_each_loop_is_where_its_tensors_are() -> None:
    program = lowered(lambda x, y: (x.sin() + 1, y.sum(0) * 2), torch.ones(4, 4), elsewhere(4, 4))
    assert set(devices(program)) == {"cpu", "meta"} and not any(isinstance(n, ExternNode) for n in program.nodes)


def test_results_of_one_size_on_two_devices_are_two_loops() -> None:
    program = lowered(
        lambda x, y: torch.ops.aten._foreach_add.Scalar([x.exp(), y.exp()], 1), torch.ones(4), elsewhere(4)
    )
    assert sorted(devices(program)) == ["cpu", "meta"]


def test_a_number_made_of_nothing_is_computed_where_it_is_used() -> None:
    program = lowered(lambda x: x * torch.full((), 0.1, dtype=torch.float64).float() + 1, elsewhere(4))
    assert devices(program) == ["meta"] and len(program.nodes) == 1


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, s: x * s + 1, (elsewhere(4), torch.ones(()))),
        (lambda x, s: torch.where(x > 0, x, s).sum(), (elsewhere(4), torch.ones(()))),
        (lambda x, i: x[i] + 1, (elsewhere(4), torch.zeros(3, dtype=torch.int64))),
        (
            lambda x, i: x.index_put((i,), x[:3].exp(), accumulate=True),
            (elsewhere(4), torch.zeros(3, dtype=torch.int64)),
        ),
        (lambda x, y: x.copy_(y) + 1, (elsewhere(4), torch.ones(4))),
        (lambda x, y: torch.cat([x.sin(), y.to(META)]), (elsewhere(4), torch.ones(4))),
    ],
)
def test_what_mixes_devices_is_an_aten_kernel(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    program = lowered(function, *args)
    assert any(isinstance(node, ExternNode) for node in program.nodes)


def test_sums_in_any_order_are_not_for_deterministic_algorithms() -> None:
    """Loops elsewhere than on a CPU add in any order: ATen has kernels that do not."""

    def function(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, i, y)

    def calls(device: torch.device | str) -> int:
        given = (torch.ones(8, 4), torch.zeros(3, dtype=torch.int64), torch.ones(3, 4))
        nodes = lowered(function, *(tensor.to(device) for tensor in given)).nodes
        return sum(isinstance(node, ExternNode) for node in nodes)

    assert calls("cpu") == calls(META) == 0
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert calls("cpu") == 0 and calls(META) == 1
    finally:
        torch.use_deterministic_algorithms(before)


def test_gradients_of_embeddings_in_16_bits_are_added_up_in_float32() -> None:
    def function(grad: torch.Tensor, index: torch.Tensor, rows: int = 9) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, index, rows, 4, False)

    def nodes(device: torch.device | str, dtype: torch.dtype, rows: int = 9) -> list[Any]:
        given = (torch.ones(5, 64, dtype=dtype), torch.zeros(5, dtype=torch.int64))
        return lowered(lambda g, i: function(g, i, rows), *(tensor.to(device) for tensor in given)).nodes

    for dtype in (torch.bfloat16, torch.float16):
        made = nodes(META, dtype)
        assert not any(isinstance(node, ExternNode) for node in made) and len(made) == 3
        assert not any(isinstance(node, ExternNode) for node in nodes("cpu", dtype))
        assert any(isinstance(node, ExternNode) for node in nodes(META, dtype, 1 << 20))
    assert not any(isinstance(node, ExternNode) for node in nodes(META, torch.float32, 1 << 20))
