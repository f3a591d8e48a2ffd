"""Setting `requires_grad` on tensors of the graph: leaves begin to require gradients, everything else is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
import sweeps
from argand.capture.driver.explain import Findings

Program = Callable[[torch.Tensor, nn.Linear], Any]


def of_a_view(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x[:, None]
    y.requires_grad = True
    return lin(y).sum()


def of_a_result(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x * 1
    y.requires_grad = True
    return y, y * 2, y.requires_grad, y.is_leaf


def and_back(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x * 1
    y.requires_grad = True
    y.requires_grad = False
    return y * 2


def differentiated(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x * 1
    y.requires_grad = True
    return torch.autograd.grad((y * y).sum(), y)[0]


def stepped(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x.detach()
    y.requires_grad = True
    (y * y).sum().backward()
    return y.grad, y


def without_gradients(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x * 1
    with torch.no_grad():
        y.requires_grad = True
        z = y * 2
    return z, y * 3


def inside_a_try(x: torch.Tensor, lin: nn.Linear) -> Any:
    try:
        row = x.detach()[x.argmax() % 2]
        y = x[:, None]
        y.requires_grad = True
        return (lin(y) * row).sum()
    except IndexError:
        return x.sum()


def of_no_leaf(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = lin(x)
    y.requires_grad = True
    return y


def off_a_result(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = lin(x)
    y.requires_grad = False
    return y


def of_integers(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x.long()
    y.requires_grad = True
    return y


def of_another_kind(x: torch.Tensor, lin: nn.Linear) -> Any:
    y = x * 1
    y.requires_grad = 1  # type: ignore[assignment]
    return y


def of_an_input(x: torch.Tensor, lin: nn.Linear) -> Any:
    x.requires_grad = True
    return x * 2


ONE_GRAPH = [of_a_view, of_a_result, and_back, differentiated, stepped, without_gradients, inside_a_try]
OTHERS = [of_no_leaf, off_a_result, of_integers, of_another_kind, of_an_input]


def outcome(program: Any, grad: bool) -> Any:
    torch.manual_seed(0)
    lin, x = nn.Linear(3, 3), torch.arange(6.0).view(2, 3).requires_grad_(grad)
    try:
        result = program(x, lin)
    except Exception as error:
        return type(error), str(error), x.requires_grad
    results = result if isinstance(result, tuple) else (result,)
    tensors = [y for y in results if isinstance(y, torch.Tensor)]
    for y in tensors:
        if y.requires_grad:
            y.sum().backward(retain_graph=True)
    shown = [(y.detach(), y.requires_grad, y.is_leaf, y.grad if y.is_leaf else None) for y in tensors]
    return shown, len(results), x.grad, x.requires_grad, lin.weight.grad


@pytest.mark.parametrize(
    ("grad", "backend", "program"), sweeps.combinations([False, True], ["eager", "aot_eager"], ONE_GRAPH + OTHERS)
)
def test_as_eager(program: Program, backend: str, grad: bool) -> None:
    findings = Findings()
    with findings.listening():
        got = outcome(argand.compile(program, backend=backend), grad)
    assert str(got) == str(outcome(program, grad))
    if program in ONE_GRAPH and (not grad or program is stepped):
        assert not findings.breaks


def test_native() -> None:
    shown, *rest = outcome(argand.compile(of_a_view, fullgraph=True), False)
    wanted, *others = outcome(of_a_view, False)
    torch.testing.assert_close(shown[0][0], wanted[0][0])
    assert str(rest) == str(others)


def test_nothing_is_written() -> None:
    """The view's memory is the input's, which is too large to be kept aside in case an operation raises."""
    lin, x = nn.Linear(512, 1), torch.randn(512, 512)
    compiled = argand.compile(inside_a_try, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x[:2], lin), inside_a_try(x[:2], lin))
    torch.testing.assert_close(compiled(x, lin), inside_a_try(x, lin))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_views_are_not_detached_in_place(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(-1).detach_()

    for fn in (program, argand.compile(program, backend=backend)):
        with pytest.raises(RuntimeError, match="detach views in-place"):
            fn(torch.ones(2, requires_grad=True))
