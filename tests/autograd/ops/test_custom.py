"""Operators of the program's own whose backward looks at values: compiled, the backward being one operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
from argand.autograd.tracing.trace import trace_joint
from argand.backends.cudagraphs import why_not
from argand.graph.operators.custom_backward import custom_call
from helpers import CountingBackend, collected

NAME = "argand_tests_custom"


def _grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x times the matrix of their group."""
    made, start = x.new_zeros(x.shape[0], weight.shape[2]), 0
    for number, end in enumerate(ends.tolist()):
        made[start:end] = x[start:end] @ weight[number]
        start = end
    return made


def _grouped_backward(ctx: Any, grad: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    made, start = (torch.zeros_like(x), torch.zeros_like(weight)), 0
    for number, end in enumerate(ctx.ends.tolist()):
        made[0][start:end] = grad[start:end] @ weight[number].T
        made[1][number] = x[start:end].T @ grad[start:end]
        start = end
    return (*made, None)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


@pytest.fixture(scope="module", autouse=True)
def operators() -> Any:
    library = torch.library.Library(NAME, "DEF")
    library.define("grouped(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    library.impl("grouped", _grouped, "CPU")
    library.define("scaled(Tensor x, float factor) -> Tensor")
    library.impl("scaled", lambda x, factor: x * factor, "CPU")
    library.define("noisy(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.define("parts(Tensor x) -> (Tensor, Tensor)")
    library.impl("parts", lambda x: (x.sin(), (x > 0).long()), "CPU")
    torch.library.register_fake(f"{NAME}::grouped", lambda x, w, ends: x.new_empty(len(x), w.shape[2]), lib=library)
    torch.library.register_fake(f"{NAME}::scaled", lambda x, factor: torch.empty_like(x), lib=library)
    torch.library.register_fake(
        f"{NAME}::parts", lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)), lib=library
    )
    torch.library.register_autograd(f"{NAME}::grouped", _grouped_backward, setup_context=_setup, lib=library)

    def by_value(ctx: Any, grad: Any, *rest: Any) -> Any:
        return grad * max(grad.abs().flatten().tolist()), *([None] * ctx.others)

    def context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.others = len(inputs) - 1

    for name in ("scaled", "parts"):
        torch.library.register_autograd(f"{NAME}::{name}", by_value, setup_context=context, lib=library)
    return library


def own() -> Any:
    return getattr(torch.ops, NAME)


def gradients(run: Any, *given: Any) -> list[torch.Tensor]:
    taken = [one.detach().requires_grad_() if one.is_floating_point() else one for one in given]
    out = run(*taken)
    found = torch.autograd.grad(out.square().sum(), [one for one in taken if one.requires_grad])
    return [out.detach(), *found]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_loop_over_groups(backend: str, by_name: bool) -> None:
    """As in layers of experts; which rows are whose changes from call to call."""

    def fn(x: Any, weight: Any, ends: Any) -> Any:
        if by_name:
            return own().grouped(x.sin() * 2, ends=ends, weight=weight).cos() + 1
        return own().grouped(x.sin() * 2, weight, ends).cos() + 1

    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    weight = torch.randn(3, 4, 5)
    with collected("fallback", "aot_joint_graph") as seen:
        for step in range(4):
            x, ends = torch.randn(9, 4), torch.tensor([step, 2 * step, 9])
            torch.testing.assert_close(gradients(compiled, x, weight, ends), gradients(fn, x, weight, ends))
    (graph,) = [event.text() for event in seen if event.name == "aot_joint_graph"]
    assert graph.count("argand.custom_backward") == 1
    assert not [event for event in seen if event.data.get("scope") == "graph"]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_that_have_no_gradient(backend: str) -> None:
    def fn(x: Any) -> Any:
        made, signs = own().parts(x * 3)
        return made * signs

    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 5).t()
        got, want = gradients(compiled, x), gradients(fn, x)
        torch.testing.assert_close(got, want)
        assert [one.stride() for one in got] == [one.stride() for one in want]


def test_others_run_as_they_are() -> None:
    """Numbers among the arguments; casts by autocast."""

    def fn(x: Any) -> Any:
        return own().scaled(x.sin(), 2.0) + 1

    x = torch.randn(4, 5)
    with collected("fallback") as seen:
        torch.testing.assert_close(gradients(argand.compile(fn), x), gradients(fn, x))
    assert any("raised" in event.text() for event in seen)
    grouped = (torch.randn(9, 4), torch.randn(3, 4, 5), torch.tensor([1, 2, 9]))

    def cast(*given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return own().grouped(*given).float()

    torch.testing.assert_close(gradients(argand.compile(cast), *grouped), gradients(cast, *grouped))


def test_which_operators_may_be_called_again() -> None:
    x = torch.randn(3)
    assert custom_call(own().parts, [x], {}) == (own().parts.default, [x])
    assert custom_call(own().parts, [], {"x": x}) == (own().parts.default, [x])
    assert custom_call(own().parts, [x], {"y": x}) is None
    assert custom_call(own().noisy, [x], {}) is None  # other numbers
    assert custom_call(own().scaled, [x, 2.0], {}) is None
    assert custom_call(torch.ops.aten.sin.default, [x], {}) is None
    assert custom_call(torch.sin, [x], {}) is None


def test_it_is_in_no_cuda_graph() -> None:
    backend = CountingBackend()
    given = [torch.randn(9, 4), torch.randn(3, 4, 5, requires_grad=True), torch.tensor([1, 2, 9])]
    argand.compile(lambda *args: own().grouped(*args), backend=backend)(*given)
    program = trace_joint(backend.graphs[0], given).program
    for node in list(program.graph.nodes):  # the forward's own operator is refused, too
        if node.op == "call_function" and "grouped" in str(node.target):
            node.target = torch.ops.aten.relu.default
    assert "the backward of" in why_not(program, [torch.device("cpu")], "cpu")


def test_calls_that_look_alike_are_all_made() -> None:
    calls: list[int] = []

    @torch.library.custom_op("argand_tests_custom::ticket", mutates_args=())
    def ticket(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x + len(calls)

    ticket.register_fake(torch.empty_like)
    x = torch.zeros(2)
    compiled = argand.compile(lambda x: ticket(x) * 10 + ticket(x), backend="native")
    assert compiled(x).tolist() == [12, 12]
    assert compiled(x).tolist() == [34, 34]
