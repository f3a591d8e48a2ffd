"""`nn.Parameter`s and modules that captured code makes: leaves of the graph's own, and Parameters where they leave it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
import sweeps

BACKENDS = ["eager", "aot_eager", "native"]


def stays_inside(x: torch.Tensor) -> Any:
    p = nn.Parameter(torch.full((3,), 2.0))
    assert type(p) is nn.Parameter and isinstance(p, torch.Tensor) and p.is_leaf and p.requires_grad
    return (x * p).sum()


def leaves_with_its_history(x: torch.Tensor) -> Any:
    p = nn.Parameter(x.detach() * 2)
    return (x * p).sum(), p, [p]


def filled(x: torch.Tensor) -> Any:
    p = nn.Parameter(torch.empty(3))
    with torch.no_grad():
        p.fill_(2.0)
    nn.init.ones_(p[:1])
    return (x * p).sum(), p


def over_memory_of_the_argument(x: torch.Tensor) -> Any:
    p = nn.Parameter(x, requires_grad=False)
    p.mul_(2)
    return p, nn.Parameter(p), p.detach()


def of_integers(x: torch.Tensor) -> Any:
    return nn.Parameter(torch.arange(3), requires_grad=False), x + 1


def trained_within(x: torch.Tensor) -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x.detach()).sum()
        loss.backward()
        optimizer.step()
    return loss.detach(), [p.detach() for p in model.parameters()], [p.grad for p in model.parameters()]


def a_module_given_back(x: torch.Tensor) -> Any:
    model = nn.Linear(3, 2)
    return model(x).sum(), model, model.weight


def many_modules(x: torch.Tensor) -> Any:
    x = x[None, None].expand(2, 4, 3)
    norm = nn.BatchNorm1d(4)
    y = norm(nn.Conv1d(4, 4, 3, padding=1)(x))
    return nn.LayerNorm(3)(nn.GRU(3, 3, batch_first=True)(y)[0]).sin().sum(), norm.running_mean, norm


def under_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        p = nn.Parameter(torch.ones(3))
        y = p * 2
    return p, y, (p * x).sum()


def across_a_break(x: torch.Tensor) -> Any:
    model = nn.Linear(3, 2)
    y = model(x)
    argand.graph_break()
    return (model(x) + y).sum(), model.bias


def a_parameter_as_one(x: torch.Tensor) -> Any:
    p = nn.Parameter(nn.Parameter(torch.ones(3)) * 2)
    return (p * x).sum(), p, p is nn.Parameter, torch.is_tensor(p)


def buffers(x: torch.Tensor) -> Any:
    """Detached tensors with two attributes, which a module keeps among its buffers."""
    model = nn.Linear(3, 3)
    model.scale = nn.Buffer(torch.full((3,), 2.0))
    model.passing = nn.Buffer(x, persistent=False)
    model.scale.mul_(2)
    kept = nn.Buffer(x * 3)
    told = isinstance(kept, nn.Buffer), isinstance(x, nn.Buffer), model.passing.persistent, [*model._buffers]
    return (x * model.scale * model.passing).sum(), model, kept, told


PROGRAMS = [
    stays_inside, leaves_with_its_history, filled, over_memory_of_the_argument, of_integers, trained_within,
    a_module_given_back, many_modules, under_no_grad, across_a_break, a_parameter_as_one, buffers,
]  # fmt: skip


def told(value: Any) -> Any:
    """What is compared of a result."""
    if isinstance(value, nn.Module):
        return [type(value).__name__, str(value), told(dict(value.state_dict())), told(list(value.parameters()))]
    if isinstance(value, torch.Tensor):
        grad = None if not value.is_leaf or value.grad is None else value.grad.tolist()
        return type(value).__name__, value.dtype, value.requires_grad, value.is_leaf, value.tolist(), grad
    if isinstance(value, dict):
        return {key: told(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [told(item) for item in value]
    return value


def outcome(fn: Callable[..., Any], grad: bool) -> Any:
    torch.manual_seed(3)
    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=grad)
    if fn.__name__ == "over_memory_of_the_argument" and grad:
        x = x.detach()
    result = fn(x)
    parts = result if isinstance(result, tuple) else (result,)
    if isinstance(parts[0], torch.Tensor) and parts[0].dim() == 0 and parts[0].requires_grad:
        parts[0].backward()
    aliases = [a is b for a in parts for b in parts]
    return told(parts), told(x), aliases


def close(want: Any, got: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for a, b in zip(want, got):
            close(a, b)
    elif isinstance(want, dict):
        assert list(want) == list(got)
        close(list(want.values()), list(got.values()))
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
    else:
        assert want == got


@pytest.mark.parametrize(("grad", "backend", "program"), sweeps.combinations([False, True], BACKENDS, PROGRAMS))
def test_values_classes_and_gradients_are_eagers(program: Callable[..., Any], backend: str, grad: bool) -> None:
    with argand.config.patch(fallback_random=True):
        compiled = argand.compile(program, backend=backend, fullgraph=program is not across_a_break)
        for _ in range(2):
            close(outcome(program, grad), outcome(compiled, grad))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_put_into_a_module(backend: str) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.weight = nn.Parameter(model.weight * 2 + x)
        return model(x).sum()

    results = []
    for call in (step, argand.compile(step, backend=backend, fullgraph=True)):
        torch.manual_seed(1)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            call(model, torch.ones(3)).backward()
            optimizer.step()
        results.append(told([model.weight, model.bias, list(model._parameters)]))
    close(*results)


def test_what_is_no_parameter_raises_as_in_eager() -> None:
    def fn(x: torch.Tensor) -> Any:
        return nn.Parameter(torch.arange(3))

    for call in (fn, argand.compile(fn)):
        with pytest.raises(RuntimeError, match="floating point"):
            call(torch.ones(3))


def test_the_argument_stays_what_it_was() -> None:
    def fn(x: torch.Tensor) -> Any:
        return nn.Parameter(x, requires_grad=False)

    for backend in BACKENDS:
        x = torch.ones(3)
        made = argand.compile(fn, backend=backend, fullgraph=True)(x)
        assert type(x) is torch.Tensor and type(made) is nn.Parameter and made is not x
        assert made.data_ptr() == x.data_ptr()


def test_a_copy_of_a_parameter() -> None:
    source = nn.Parameter(torch.ones(3))

    def fn(x: torch.Tensor) -> Any:
        return copy.deepcopy(source), x + source

    made, _ = argand.compile(fn, fullgraph=True)(torch.ones(3))
    assert type(made) is nn.Parameter and made.requires_grad and made is not source
