"""Backwards of calls like earlier ones, and of calls that are unlike these, against eager's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import argand
from argand.own_code import OWN_FOLDER
from argand.runtime.tape.arrivals import Order


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs stay compiled."""
    monkeypatch.setattr(argand.config, "tell_slower", False)


def of_two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * y).tanh(), (x - y).exp() * y


def leaves(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.linspace(k - 2, 1, 12, dtype=dtype).view(3, 4).requires_grad_() for k in range(2)]


def usual(f: Callable[..., Any]) -> list[torch.Tensor]:
    given = leaves()
    results = f(*given)
    return list(torch.autograd.grad(results, given, [torch.full_like(each, 0.5) for each in results]))


def called(step: Callable[[], Any]) -> list[str]:
    """Names of argand's functions that a step calls."""
    names = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((OWN_FOLDER, "<argand")):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return names


def test_a_step_like_earlier_ones_passes_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Order, "matters", lambda order: False)  # whatever tests of DDP ran in this process
    f = argand.compile(of_two, dynamic=False)
    for _ in range(3):
        usual(f)
    names = called(lambda: usual(f))
    assert "lay_out" not in names and "of_inputs" not in names
    assert len(names) <= 26, names


def _transposed(f: Any) -> Any:
    given = leaves()
    first, second = f(*given)
    grads = [torch.arange(12.0).view(4, 3).T, torch.ones(1).expand(3, 4)]
    return torch.autograd.grad([first, second], given, grads)


def _one_result(f: Any) -> Any:
    given = leaves()
    return torch.autograd.grad(f(*given)[1].sum(), given)


def _twice(f: Any) -> Any:
    given = leaves()
    first, second = f(*given)
    grads = torch.autograd.grad(first.sum() + second.sum(), given, create_graph=True)
    return torch.autograd.grad(sum(grad.square().sum() for grad in grads), given)


def _retained(f: Any) -> Any:
    given = leaves()
    loss = sum(result.sum() for result in f(*given))
    kept = [torch.autograd.grad(loss, given, retain_graph=True) for _ in range(2)]
    last = torch.autograd.grad(loss, given)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, given)
    return kept, last


def _batched(f: Any) -> Any:
    given = leaves()
    results = f(*given)
    return torch.autograd.grad(results, given, [torch.eye(12).view(12, 3, 4)] * 2, is_grads_batched=True)


def _of_a_result_with_other_data(f: Any) -> Any:
    given = leaves()
    results = f(*given)
    results[0].data = results[0].data * 0.5
    return torch.autograd.grad(results, given, [torch.ones(3, 4)] * 2)


def _of_an_input_with_other_data(f: Any) -> Any:
    given = leaves()
    results = f(*given)
    given[1].data = torch.arange(12.0).view(4, 3).T / 9
    return torch.autograd.grad(results, given, [torch.ones(3, 4)] * 2)


def _written(f: Any) -> Any:
    given = leaves()
    results = f(*given)
    with torch.no_grad():
        given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(results, given, [torch.ones(3, 4)] * 2)
    return 0


def _hooked(f: Any) -> Any:
    given, unpacked = leaves(), []

    def unpack(one: torch.Tensor) -> torch.Tensor:
        unpacked.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
        results = f(*given)
    grads = torch.autograd.grad(results, given, [torch.ones(3, 4)] * 2)
    return grads, len(unpacked)


def _undone(f: Any) -> Any:
    given = leaves()
    seen: list[torch.Tensor] = []
    results = f(*given)
    results[0].register_hook(lambda grad: grad * 2)
    given[0].register_hook(lambda grad: seen.append(grad.clone()))
    return torch.autograd.grad(results, given, [torch.ones(3, 4)] * 2), seen


UNUSUAL = [
    _transposed,
    _one_result,
    _twice,
    _retained,
    _batched,
    _of_a_result_with_other_data,
    _of_an_input_with_other_data,
    _written,
    _hooked,
    _undone,
]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("unlike", UNUSUAL, ids=lambda function: function.__name__)
def test_calls_that_are_unlike_earlier_ones(unlike: Callable[[Any], Any], first: int) -> None:
    f = argand.compile(of_two, dynamic=False)
    for _ in range(first):
        usual(f)
    torch.testing.assert_close(unlike(f), unlike(of_two), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(usual(f), usual(of_two), rtol=1e-5, atol=1e-6)


def test_numbers_of_the_call_reach_the_backward() -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return (x * factor).sin()

    f = argand.compile(scaled)
    for number in range(6):
        x = leaves()[0]
        (got,) = torch.autograd.grad(f(x, number + 0.5).sum(), x)
        (want,) = torch.autograd.grad(scaled(x, number + 0.5).sum(), x)
        torch.testing.assert_close(got, want)
