"""Compiled steps of optimizers over DTensors: parameters that are cut, whole ones, shards of FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.parallel_programs import _told
from tests.distributed.shard_programs import local
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

import argand
import sweeps

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda ps: optim.SGD(ps, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda ps: optim.AdamW(ps, 0.01, eps=0.01),
    "amsgrad, lr is a tensor": lambda ps: optim.Adam(ps, torch.tensor(0.01), eps=0.01, amsgrad=True),
    "adamax": lambda ps: optim.Adamax(ps, 0.01, eps=0.01),
    "nadam": lambda ps: optim.NAdam(ps, 0.01, eps=0.01),
    "radam": lambda ps: optim.RAdam(ps, 0.01, eps=0.01),
    "adagrad": lambda ps: optim.Adagrad(ps, 0.01, eps=0.01),
    "adadelta": lambda ps: optim.Adadelta(ps, 1.0),
    "rmsprop": lambda ps: optim.RMSprop(ps, 0.01, eps=0.01, momentum=0.5, centered=True),
    "asgd": lambda ps: optim.ASGD(ps, 0.05),
    "adamw of lists": lambda ps: optim.AdamW(ps, 0.01, eps=0.01, foreach=True),
    "fused adamw": lambda ps: optim.AdamW(ps, 0.01, eps=0.01, fused=True),
}


def _model(shards: bool) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    if shards:
        return fully_shard(model, mesh=mesh)
    distribute_module(model, mesh)
    weight: Any = model[0].weight
    model[0].weight = nn.Parameter(distribute_tensor(weight.full_tensor().detach(), mesh, [Shard(0)]))
    return model


def _trained(name: str, shards: bool, compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _model(shards)
    mesh = model[0].weight.device_mesh  # type: ignore[index]
    optimizer = OPTIMIZERS[name](model.parameters())

    def stepped() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step = compiled(stepped)
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(4, 6)
        model(x if shards else distribute_tensor(x, mesh, [Replicate()])).square().mean().backward()
        step()
    states = [optimizer.state[p] for p in model.parameters()]
    values = [state[key] for state in states for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    return [local(value) for value in (*model.parameters(), *values)]


def steps(rank: int) -> list[str]:
    """Where parameters or states are not eager's. Each step is one graph."""
    wrong = []
    for number, name in enumerate(OPTIMIZERS):
        if not sweeps.WHOLE and 3 <= number <= 9 and name != "radam":  # formulas of their own, and no other calls
            continue
        backend, shards = ("aot_eager", "eager", "native", "eager")[number % 4], number % 3 == 1
        argand.reset()
        eager = _trained(name, shards, lambda step: step)
        ours = _trained(name, shards, lambda step: argand.compile(step, backend=backend, fullgraph=True))  # noqa: B023
        for a, b in zip(ours, eager, strict=True):
            if not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6):
                wrong.append(f"{name} {backend} {shards}: {_told(a)} {_told(b)}")
    return wrong
