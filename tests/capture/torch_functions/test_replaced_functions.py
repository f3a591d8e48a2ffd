"""Functions and methods of torch's that the program replaced: what it put there is called, and torch's own by it."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps

CASES: dict[str, tuple[Any, str, Callable[[torch.Tensor], Any]]] = {
    "sinh": (torch, "sinh", lambda x: torch.sinh(x)),
    "cat": (torch, "cat", lambda x: torch.cat([x, x])),
    "ones": (torch, "ones", lambda x: x + torch.ones(3)),
    "is_tensor": (torch, "is_tensor", lambda x: x * torch.is_tensor(x)),
    "gelu": (F, "gelu", lambda x: F.gelu(x)),
    "relu": (F, "relu", lambda x: F.relu(x)),
    "floor": (math, "floor", lambda x: x * math.floor(2.5)),
    "cosh": (torch.Tensor, "cosh", lambda x: x.cosh()),
    "add_": (torch.Tensor, "add_", lambda x: (x * 1).add_(1)),
    "size": (torch.Tensor, "size", lambda x: x * x.size(0)),
    "to": (torch.Tensor, "to", lambda x: x.to(torch.float64)),
    "/": (torch.Tensor, "__truediv__", lambda x: x / 2),
    "@": (torch.Tensor, "__matmul__", lambda x: x @ x),
    "-x": (torch.Tensor, "__neg__", lambda x: -x),
    "abs": (torch.Tensor, "__abs__", lambda x: abs(x)),
    "+=": (torch.Tensor, "__iadd__", lambda x: operator.iadd(x * 1, 1)),
    "1 - x": (torch.Tensor, "__rsub__", lambda x: 1 - x),
    "[]": (torch.Tensor, "__getitem__", lambda x: x[0]),
    "==": (torch.Tensor, "__eq__", lambda x: (x == 1) * 1),
    "len": (torch.Tensor, "__len__", lambda x: x * len(x)),
}


def disguised(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 10

    return other


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def other(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 10

    return other


@pytest.mark.parametrize(
    ("name", "replace", "backend"), sweeps.combinations(CASES, [disguised, plain], ["eager", "native"])
)
def test_it_is_called_once(
    name: str, replace: Callable[..., Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, function = CASES[name]
    x = torch.randn(3)
    compiled = argand.compile(function, backend=backend)
    torch.testing.assert_close(compiled(x), function(x))
    with monkeypatch.context() as patched:
        patched.setattr(owner, attribute, replace(getattr(owner, attribute)))
        want = function(x)
        got = compiled(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(compiled(x), function(x))


REPLACED: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "sinh": ("sinh", lambda x: torch.sinh(x) + x.sinh()),
    "index_select": ("index_select", lambda x: torch.index_select(x, 0, torch.tensor([0, 2]))),
    "by name": ("index_select", lambda x: torch.index_select(x, dim=0, index=torch.tensor([1]))),
    "where": ("where", lambda x: torch.where(x > 0, x, -x)),
    "clamp": ("clamp", lambda x: torch.clamp(x, min=0.5)),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_wrapper_of_torchs_own_function_is_followed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages replace functions of torch's, to take more than tensors: the method is the same operation."""
    attribute, function = REPLACED[name]
    monkeypatch.setattr(torch, attribute, plain(getattr(torch, attribute)))
    x = torch.randn(3)
    compiled = argand.compile(function, backend="eager", fullgraph=attribute != "where")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
