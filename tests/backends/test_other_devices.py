"""Graphs on devices that no code is generated for run as they are: eager's operators, eager's autograd, one reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import argand
from helpers import collected


def reasons(seen: list[Any]) -> list[str]:
    return [event.data["reason"] for event in seen]


def test_inference_calls_what_the_program_calls() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).to("meta")
    calls: list[str] = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 4, device="meta")
    with collected("fallback") as seen, torch.no_grad():
        compiled = argand.compile(model)
        assert compiled(x).shape == (2, 8) and compiled(x).device.type == "meta"
        with Counting():
            compiled(x)
    assert reasons(seen) == ["no code is generated for tensors on meta"] * len(seen) and seen
    assert {"linear", "gelu", "layer_norm"} <= set(calls) and "addmm" not in calls


def test_training_is_eagers() -> None:
    model = nn.Linear(4, 3, device="meta")
    x = torch.ones(2, 4, device="meta", requires_grad=True)
    with collected("fallback") as seen:
        result = argand.compile(lambda x: model(x).sin().sum())(x)
    assert "CompiledFunction" not in type(result.grad_fn).__name__ and seen
    result.backward()
    assert x.grad is not None and x.grad.shape == (2, 4) and model.weight.grad is not None


def test_sizes_that_vary() -> None:
    compiled = argand.compile(lambda x: x * x.shape[0], dynamic=True)
    for n in (3, 5, 7):
        assert compiled(torch.ones(n, device="meta")).shape == (n,)


def test_tensors_of_two_devices() -> None:
    def both(x: torch.Tensor) -> Any:
        return x + 1, torch.zeros(3, device="meta") * 2

    cpu, meta = argand.compile(both)(torch.ones(2))
    assert torch.equal(cpu, torch.full((2,), 2.0)) and meta.device.type == "meta"
