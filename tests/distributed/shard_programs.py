"""FSDP2 and tensor parallelism inside compiled code, by eager and by argand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import argand
import sweeps
from argand.breaks.kinds import IDS
from argand.engine.entries import Trial
from distributed.models import CNN, MANY, TWO_BLOCKS, Llama, batch
from distributed.pipeline_programs import stages

__all__ = [
    "both",
    "breaks",
    "fsdp",
    "fsdp_recorded",
    "fsdp_steps",
    "stages",
    "tensor_parallel",
    "tensor_parallel_steps",
]


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 32), nn.Linear(32, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def sharded(model: nn.Module) -> nn.Module:
    for block in [*getattr(model, "blocks", ()), model]:
        fully_shard(block)
    return model


def parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def local(value: Any) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def train(
    rank: int, make: Callable[[], nn.Module], way: str = "", steps: int = 3, same: bool = False
) -> list[torch.Tensor]:
    argand.reset()
    torch.manual_seed(0)
    model = make()
    how, _, backend = way.partition(" ")
    call = argand.compile(model, backend=backend) if how == "outer" else model

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return call(x).float().square().mean()

    loss_of = argand.compile(loss_of, backend=backend) if how == "step" else loss_of
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(batch(model, 0 if same else rank, step)).backward()
        optimizer.step()
    state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    return [local(value) for value in (*model.parameters(), *(p.grad for p in model.parameters()), *state)]


def difference(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(ours, eager, strict=True))


def compare(
    rank: int, make: Callable[[], nn.Module], *ways: str, same: bool = False, steps: int = 3
) -> dict[str, float]:
    eager = train(rank, make, same=same, steps=steps)
    return {way: difference(train(rank, make, way, same=same, steps=steps), eager) for way in ways}


def fsdp(rank: int) -> dict[str, float]:
    """On the backends that `fsdp_steps` does not try."""
    return {
        **compare(rank, lambda: sharded(TWO_BLOCKS()), "outer aot_eager"),
        **compare(rank, lambda: sharded(Llama(layers=2)), "step eager"),
    }


LONG: tuple[tuple[str, Callable[[], nn.Module], int], ...] = (
    ("GPT", TWO_BLOCKS, MANY),
    ("Llama", partial(Llama, layers=2), MANY),
    ("CNN", CNN, MANY),
)
"""Models that are trained in many steps."""


def fsdp_steps(rank: int) -> dict[str, float]:
    """Many steps, of the compiled model and of the compiled step."""
    found = {}
    for name, make, steps in LONG:
        ways = ("outer native",) if name != "Llama" else ("step native",)
        made = compare(rank, lambda: sharded(make()), *ways, steps=steps)  # noqa: B023
        found.update({f"{name} {way}": error for way, error in made.items()})
    return found


def fsdp_recorded(rank: int) -> dict[str, float]:
    """Compiled autograd leaves it to the engine, also on one rank only: the others wait for its collectives."""
    eager = train(rank, lambda: sharded(CNN()), steps=5)
    before, Trial.is_engines_turn = Trial.is_engines_turn, lambda self: rank == 0
    try:
        with argand.compiled_autograd():
            return {"recorded native": difference(train(rank, lambda: sharded(CNN()), "outer native", steps=5), eager)}
    finally:
        Trial.is_engines_turn = before


def tensor_parallel(rank: int) -> dict[str, float]:
    return compare(rank, lambda: parallel(MLP()), "outer aot_eager", "step native", same=True)


def in_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    """The layers of each block's MLP, by columns and then by rows; a CNN's head by columns."""
    if isinstance(model, CNN):
        return parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    for block in model.blocks:
        names = ("gate", "up", "down") if isinstance(model, Llama) else ("mlp.0", "mlp.2")
        plan = {name: ColwiseParallel() for name in names[:-1]}
        parallelize_module(block, mesh, {**plan, names[-1]: RowwiseParallel()})
    return model


def tensor_parallel_steps(rank: int) -> dict[str, float]:
    found = {}
    for name, make, steps in LONG if sweeps.WHOLE else LONG[::2]:  # `both` has the second
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        made = compare(rank, lambda: in_parallel(make(), mesh), "outer native", same=True, steps=steps)  # noqa: B023
        found.update({f"{name} {way}": error for way, error in made.items()})
    return found


def both(rank: int) -> dict[str, float]:
    """Shards of what is parallel, on a mesh of two dimensions."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("shards", "parts"))

    def made(make: Callable[[], nn.Module]) -> nn.Module:
        model = in_parallel(make(), mesh["parts"])
        for block in [*getattr(model, "blocks", ()), model]:
            fully_shard(block, mesh=mesh["shards"])
        return model

    found = {}
    for name, make, steps in LONG if sweeps.WHOLE else LONG[1:]:  # `sharded_blocks` has one like the first
        # what is parallel computes on the same data
        errors = compare(rank // 2, lambda: made(make), "outer native", steps=steps)  # noqa: B023
        found.update({f"{name} {way}": error for way, error in errors.items()})
    return found


def breaks(rank: int) -> dict[str, list[str]]:
    """Where the graphs of each kind of model break."""
    found = {}
    made: dict[str, Callable[[], nn.Module]] = {
        "fsdp": lambda: sharded(TWO_BLOCKS()),
        "tensor_parallel": lambda: parallel(MLP()),
    }
    for name, make in made.items():
        argand.reset()
        model = make()
        reasons = argand.explain(model)(batch(model, 0, 0)).break_reasons
        found[name] = [f"{IDS[reason.kind]} {reason.context}" for reason in reasons]
    return found
