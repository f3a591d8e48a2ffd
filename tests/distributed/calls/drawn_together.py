"""What a mesh draws together, which DTensor has on GPUs alone: here its tracker moves the CPU's generator instead."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, _random, distribute_tensor

import argand
from argand.autograd.tracing import tracer
from argand.graph import dtensors
from argand.graph.operators import random_ops

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.5),
    "uniform": lambda x: x * torch.rand_like(x),
    "normal": lambda x: x + torch.randn_like(x),
    "in place": lambda x: x * torch.empty_like(x).uniform_(-1, 2) + torch.zeros_like(x).normal_(1.0, 2.0),
    "of two": lambda x: x * torch.bernoulli(torch.sigmoid(x).detach()) - torch.empty_like(x).bernoulli_(0.3),
    "twice": lambda x: F.dropout(F.dropout(x, 0.3).sin(), 0.2) + F.dropout(x, 0.7),
}


@contextlib.contextmanager
def _moved(start: int, end: int) -> Iterator[None]:
    """The generator begins `start` draws further on, and ends `end` from where it is."""
    state = torch.get_rng_state()
    torch.rand(start)
    yield
    torch.set_rng_state(state)
    torch.rand(end)


class Tracker(_random.OffsetBasedRNGTracker):
    def __init__(self) -> None:
        self._device, self._use_distribute_region = torch.device("cpu"), True

    def _distribute_region(self, spec: Any, generator: Any = None) -> Any:
        return _moved(*dtensors.part_of_draw(spec))


def _part_draw(tensors: list[torch.Tensor], call: str, start: int, end: int) -> Any:
    name, args, kwargs = random_ops._decoded(json.loads(call), tensors, ())
    with contextlib.nullcontext() if tensors[0].is_meta else _moved(start, end):
        drawn = random_ops._drawn(name, args, kwargs)
    return drawn if isinstance(drawn, tuple) else (drawn, torch.empty(0, dtype=torch.bool, device=tensors[0].device))


def run(call: Any, mesh: Any, placement: Any) -> list[torch.Tensor]:
    """What two calls give, their gradients, and what is drawn behind them."""
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(8, 6, device=mesh.device_type), mesh, [placement]).detach().requires_grad_()
    told = []
    for _ in range(2):
        y = call(x)
        y.full_tensor().square().sum().backward()
        told += [y.full_tensor().detach(), x.grad.full_tensor(), torch.rand(2, device=mesh.device_type)]  # type: ignore[union-attr]
    return told


def draws(rank: int) -> list[str]:
    """Programs whose numbers, gradients, or what is drawn behind them, are not eager's. Each is one graph."""
    _random._rng_tracker = Tracker()
    dispatched = DTensor._op_dispatcher._random_ops
    tracer.draws_together = dtensors.draws_together = lambda func, tensor: func in dispatched  # type: ignore[attr-defined]
    random_ops.random_ops()
    library = torch.library.Library("argand", "IMPL")  # as long as it lives
    library.impl("part_draw", _part_draw, "CompositeExplicitAutograd", allow_override=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrong = []
    for name, program in PROGRAMS.items():
        for placement, backend in ((Shard(0), "native"), (Replicate(), "aot_eager"), (Shard(1), "eager")):
            ours = run(argand.compile(program, backend=backend, fullgraph=True), mesh, placement)
            eager = run(program, mesh, placement)
            if not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, eager, strict=True)):
                wrong.append(f"{name} {placement} {backend}: {ours} {eager}")
    return wrong
