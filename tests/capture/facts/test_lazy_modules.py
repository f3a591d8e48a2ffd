"""Lazy modules: the first call makes their parameters as eager does, from the same random numbers; nothing of what sets
them up is compiled, and the next calls are one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.capture.driver.explain import Findings

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)), (3, 4)),
    "convolution": (lambda: nn.Sequential(nn.LazyConv2d(5, 3), nn.LazyBatchNorm2d(), nn.ReLU()), (2, 3, 8, 8)),
    "alone": (lambda: nn.LazyLinear(3), (3, 4)),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", MODELS)
def test_as_eager(name: str, backend: str) -> None:
    make, size = MODELS[name]
    outcomes, made = [], []
    for compile in (lambda module: module, lambda module: argand.compile(module, backend=backend)):
        torch.manual_seed(3)
        module = make()
        run: Any = compile(module)
        found = []
        for seed in (1, 2, 3):
            x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
            module.zero_grad()
            y = run(x)
            y.sum().backward()
            found += [y.detach(), *(p.grad for p in module.parameters()), *module.state_dict().values()]
            found = [t.clone() for t in found]
        outcomes.append((found, torch.get_rng_state()))
        made.append((list(module.state_dict()), type(module)))
    assert made[0] == made[1]
    torch.testing.assert_close(outcomes[0], outcomes[1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_modules_are_set_up_before_anything_is_compiled(name: str, fullgraph: bool) -> None:
    make, size = MODELS[name]
    compiled = argand.compile(make(), backend="eager", fullgraph=fullgraph)
    findings = Findings()
    with findings.listening():
        compiled(torch.ones(size))
        assert not findings.graphs or name == "alone"  # torch calls the frame itself after it has set it up
        for _ in range(2):
            compiled(torch.ones(size))
    assert not findings.breaks and not findings.recompiles and len(findings.graphs) == 1


def test_what_sets_up_nothing_is_told_of() -> None:
    parameter = nn.UninitializedParameter()
    compiled = argand.compile(lambda x: (x, parameter), backend="eager", fullgraph=True)
    with pytest.raises(argand.errors.Unsupported, match="UninitializedParameter"):
        for _ in range(5):
            compiled(torch.ones(2))
