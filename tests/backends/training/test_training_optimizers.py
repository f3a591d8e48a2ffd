"""Optimizers and whole training steps, compiled by the native backend."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))  # a matrix and vectors


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW with foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW with amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(name: str, seen: Counter[str]) -> None:
    """Parameters after each step, while the learning rate changes, are those of eager's step."""
    one = net()
    two = copy.deepcopy(one)
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](two.parameters())
    compiled = argand.compile(second.step)
    compilations = []
    for step in range(10):
        for model, optimizer, run in ((one, first, first.step), (two, second, compiled)):
            optimizer.zero_grad()
            torch.manual_seed(step)
            model(torch.randn(5, 6)).pow(2).sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * (0.9 if step >= 3 else 1)
            run()
        for a, b in zip(one.parameters(), two.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)
        compilations.append(seen["output_code"])
    assert seen["fallback graph"] == 0
    assert compilations[1] > 0  # the first step sets up
    assert compilations[-1] == compilations[-4]


def test_a_learning_rate_in_a_tensor_does_not_recompile(seen: Counter[str]) -> None:
    layer = nn.Linear(3, 3)
    want = copy.deepcopy(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=torch.tensor(0.1), foreach=True)
    step = argand.compile(optimizer.step)
    for number in range(6):
        rate = 0.1 / (number + 1)
        optimizer.param_groups[0]["lr"].fill_(rate)
        for model in (layer, want):
            model.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
        step()
        with torch.no_grad():
            for p in want.parameters():
                p -= rate * p.grad
        torch.testing.assert_close(list(layer.parameters()), list(want.parameters()))
    assert seen["output_code"] == 1


def test_a_step_writes_parameters_in_place(seen: Counter[str]) -> None:
    """No copy of the results: the kernel stores into the parameters, and autograd is told."""
    codes: list[str] = []
    stop = events.bus.subscribe(lambda e: codes.append(e.text()) if e.name == "output_code" else None)
    layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    layers(torch.ones(1, 8)).sum().backward()
    versions = [p._version for p in layers.parameters()]
    try:
        argand.compile(optimizer.step)()
    finally:
        stop()
    [code] = codes
    call = code[code.index("def call(") :]
    assert "new_tensor" not in call and call.count("cpp_fused") == 1  # one kernel for all twelve parameters
    assert all(p._version > before for p, before in zip(layers.parameters(), versions))


def test_a_write_to_what_the_backward_needs_is_noticed() -> None:
    """Storing in place must not hide from autograd that a saved tensor has changed."""
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    y = (x * w).sum()
    argand.compile(lambda x: x.mul_(2))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_an_input_that_is_read_after_its_new_value_is_known() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        old = x + 0
        x.copy_(x.flip(0) + y)
        return old @ y + x.sum()

    x, y = torch.randn(5), torch.randn(5)
    other = x.clone()
    torch.testing.assert_close(argand.compile(fn)(other, y), fn(x, y))
    torch.testing.assert_close(other, x)


def whole_step(
    run: Callable[[Any], Any], make: Callable[..., Callable[..., torch.Tensor]], steps: int = 6
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = run(make(model, optimizer, average))
    losses = [step(torch.randn(12, 8), torch.randint(4, (12,))) for _ in range(steps)]
    return losses, [t.detach().clone() for m in (model, average) for t in (*m.parameters(), *m.buffers())]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def clipped_and_averaged(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module
) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for e, p in zip(average.parameters(), model.parameters()):
                e.lerp_(p, 0.1)
        return loss.detach()

    return step


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for part in range(2):
            loss = F.cross_entropy(model(x[part::2]), y[part::2]) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


@pytest.mark.parametrize("make", [plain, clipped_and_averaged, accumulated])
def test_whole_step(make: Callable[..., Any], seen: Counter[str]) -> None:
    want = whole_step(lambda f: f, make)
    got = whole_step(argand.compile, make)
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], want[1], rtol=1e-3, atol=2e-5)
    assert seen["fallback graph"] == 0 and seen["output_code"] >= 1
