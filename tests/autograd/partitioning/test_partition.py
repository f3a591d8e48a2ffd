"""Joint graphs and how they are cut."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import fx

from argand.autograd.partitioning.partition import partition
from argand.autograd.tracing.gradients import records_gradients
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.trace import trace_joint
from argand.autograd.training import plan_of
from argand.runtime.tape.plan import Slot


def joint_of(fn: object, *inputs: torch.Tensor) -> JointProgram:
    return trace_joint(fx.symbolic_trace(fn), inputs)  # type: ignore[arg-type]


def test_the_joint_graph_returns_results_and_gradients() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    joint = joint_of(lambda x, y: (x * y).sin(), x, y)
    assert joint.results == 1 and joint.gradients == (0,) and len(joint.tangents) == 1
    assert len(joint.program.output_node.args[0]) == 2  # type: ignore[arg-type]


def test_cheap_values_are_computed_again_and_the_default_keeps_them() -> None:
    x = torch.randn(64, requires_grad=True)
    joint = joint_of(lambda x: ((x.exp() * 2) + 1).neg().abs().sin(), x)
    assert len(partition(joint).saved) == 1
    assert len(partition(joint, default=True).saved) > 1


def test_what_is_made_of_an_input_is_kept_or_the_small_input_copied() -> None:
    """The program may write to the input before the backward runs, and eager has kept what it made of it."""
    for size in (64, 1 << 16):
        joint = joint_of(lambda x: ((x * 2) + 1).neg().abs().sin(), torch.randn(size, requires_grad=True))
        assert {slot.kind for slot in partition(joint).saved} == {"output"}
    joint = joint_of(lambda x: (x * x).neg().abs().sin(), torch.randn(1 << 16, requires_grad=True))
    assert [slot.kind for slot in partition(joint).saved] == [
        "input",
        "output",
    ]  # read itself, and to make others again


def test_what_is_saved_is_not_compared_with_all_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network of a hundred layers that would take longer than to cut it."""
    joint = joint_of(
        lambda x, w: functools.reduce(lambda y, number: (y @ w[number]).sin(), range(30), x),
        torch.randn(8, 8),
        torch.randn(30, 8, 8, requires_grad=True),
    )
    cut = partition(joint)
    compared: list[object] = []
    monkeypatch.setattr(Slot, "__eq__", lambda one, other: compared.append(one) or one is other)
    plan = plan_of(joint, cut)
    assert len(plan.saved) == len(plan.kept) > 20 and not compared


def test_grad_mode_decides_what_is_recorded() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    written = graph.call_method("add_", (x, 1))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output(())
    gm = fx.GraphModule(torch.nn.Module(), graph)
    inputs = (torch.randn(2, requires_grad=True),)
    assert not records_gradients(gm, inputs, enabled=True)  # as in an optimizer's step
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        graph.call_method("mul", (written, 2))
    assert records_gradients(gm, inputs, enabled=True)
