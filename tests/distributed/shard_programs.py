"""FSDP2, tensor parallelism and collectives inside compiled code, by eager and by argand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import argand
from argand.backends.registry import lookup_backend
from distributed.models import CNN, GPT, Llama, batch


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


def compare(rank: int, make: Callable[[], nn.Module], *ways: str, same: bool = False) -> dict[str, float]:
    eager = train(rank, make, same=same)
    return {way: difference(train(rank, make, way, same=same), eager) for way in ways}


def fsdp(rank: int) -> dict[str, float]:
    return {
        **compare(rank, lambda: sharded(GPT(layers=2)), "outer aot_eager"),
        **compare(rank, lambda: sharded(Llama(layers=2)), "step eager"),
        **compare(rank, lambda: sharded(CNN()), "outer native"),
    }


def tensor_parallel(rank: int) -> dict[str, float]:
    return compare(rank, lambda: parallel(MLP()), "outer aot_eager", "step native", same=True)


def _functional(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    z = funcol.all_reduce(y, "sum", dist.group.WORLD)
    w = funcol.all_gather_tensor(y.relu(), 0, dist.group.WORLD)
    r = funcol.reduce_scatter_tensor(w * 3, "sum", 0, dist.group.WORLD)
    b = funcol.broadcast(x + r, 0, dist.group.WORLD)
    s = funcol.all_to_all_single(y, None, None, dist.group.WORLD)
    return (z.sin() + r.cos()) * b + s


def _plain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    view = y[1:]
    dist.all_reduce(y)
    parts = torch.empty(2 * len(y), *y.shape[1:])
    dist.all_gather_into_tensor(parts, y.cos())
    piece = torch.empty_like(y)
    dist.reduce_scatter_tensor(piece, parts * 2)
    swapped = torch.empty_like(y)
    dist.all_to_all_single(swapped, piece)
    dist.broadcast(piece, 1)
    return (y + piece * swapped).sum(1) + view.sum()


def _later(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.exp().sum()
    work.wait()
    return y + z


def collectives(rank: int) -> dict[str, float]:
    found = {}
    for program in (_functional, _plain, _later):
        for backend in ("eager", "aot_eager", "native"):
            argand.reset()
            compiled = argand.compile(program, backend=backend)
            for step in range(3):
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
                found[f"{program.__name__}{step} {backend}"] = difference([compiled(x)], [program(x)])
    return found


def _operators(x: torch.Tensor) -> torch.Tensor:
    group, ops = dist.group.WORLD.group_name, torch.ops._c10d_functional
    y = x * 2
    first, same = ops.all_reduce(y, "sum", group), ops.all_reduce(y, "sum", group)
    ops.wait_tensor(ops.all_reduce(y + 1, "sum", group))  # nobody reads it; the other ranks wait for it
    gathered = ops.all_gather_into_tensor(x.sin().cos(), 2, group)
    meanwhile = (x.exp() + 1).cos().sin()
    return ops.wait_tensor(first) + ops.wait_tensor(same) + meanwhile + ops.wait_tensor(gathered)[:4]


def operators(rank: int) -> dict[str, Any]:
    """How often each operator is called, by eager and by compiled code; and the differences."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    whole = torch.fx.symbolic_trace(_operators)  # as another capture would hand it to a backend
    found: dict[str, Any] = {"eager": _calls(_operators, x)}
    for backend in ("aot_eager", "native"):
        argand.reset()
        compiled = argand.compile(_operators, backend=backend)
        compiled(x)
        found[backend] = _calls(compiled, x)
        found[f"{backend} graph"] = _calls(lookup_backend(backend)(whole, [x]), x)
        found[f"{backend} difference"] = difference([compiled(x)], [_operators(x)])
    return found


def _calls(run: Callable[..., Any], x: torch.Tensor) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as made:
        run(x)
    return [event.name for event in made.events() if event.name.startswith("_c10d_functional")]
