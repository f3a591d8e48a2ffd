"""Modules of parallel layers, which are DTensors inside, by eager and by argand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import argand
import sweeps
from argand import events
from argand.breaks.kinds import IDS
from distributed.models import GPT, MANY, batch
from distributed.shard_programs import difference, in_parallel, local

__all__ = ["differentiated_apart", "operations", "sharded_blocks", "stored", "views", "whole"]

WIDTH, WORDS = 32, 48


class Attention(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (layer(x).view(b, t, -1, self.head).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, head: int, mlp: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, head), mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    """Two blocks of attention, by heads of `head` features, and what `mlp` makes."""

    def __init__(
        self, words: int = WORDS, width: int = WIDTH, head: int = 8, mlp: Callable[[], nn.Module] = Gated
    ) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width, head, mlp) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


_LAYERS = {
    **{f"attention.{name}": ColwiseParallel for name in "qkv"},
    "mlp.gate": ColwiseParallel,
    "mlp.up": ColwiseParallel,
}


def by_columns_and_rows(mesh: DeviceMesh | None = None) -> Model:
    """The plainest plan: attention and MLP of each block."""
    mesh, model = mesh or init_device_mesh("cpu", (dist.get_world_size(),)), Model()
    for block in model.blocks:
        plan = {name: style() for name, style in _LAYERS.items()}
        parallelize_module(block, mesh, {**plan, "attention.o": RowwiseParallel(), "mlp.down": RowwiseParallel()})
    return model


def by_sequences() -> nn.Module:
    """What lies between attention and MLP is cut along the sequence; words are spread over the processes."""
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), Model()
    cut, whole = Shard(1), Replicate()
    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=whole, output_layouts=cut),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=cut, output_layouts=whole),
        },
    )
    for block in model.blocks:
        plan = {name: style() for name, style in _LAYERS.items()}
        gathered = PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(whole,))
        norms = {"first": SequenceParallel(), "second": SequenceParallel(), "attention": gathered, "mlp": gathered}
        rows = {name: RowwiseParallel(output_layouts=cut) for name in ("attention.o", "mlp.down")}
        parallelize_module(block, mesh, {**plan, **norms, **rows})
    return model


def as_dtensors() -> nn.Module:
    """DTensors go from layer to layer, and out of the model."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(
        Gated(),
        mesh,
        {
            "gate": ColwiseParallel(use_local_output=False),
            "up": ColwiseParallel(use_local_output=False),
            "down": RowwiseParallel(use_local_output=False),
        },
    )


def replicated() -> nn.Module:
    """Parameters that every process has, and results that the module itself makes local."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH))
    distribute_module(
        model,
        mesh,
        input_fn=lambda _, inputs, where: DTensor.from_local(inputs[0], where, [Shard(0)], run_check=False),
        output_fn=lambda _, outputs, where: outputs.redistribute(where, [Replicate()]).to_local(),
    )
    return model


def prepared_output() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Gated()
    plan = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    parallelize_module(model, mesh, {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    return parallelize_module(model, mesh, plan)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "columns and rows": by_columns_and_rows,
    "sequences": by_sequences,
    "DTensors": as_dtensors,
    "replicated": replicated,
    "prepared output": prepared_output,
}


def _batch(model: nn.Module, step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(step)
    if isinstance(model, Model):
        return torch.randint(0, WORDS, (2 + step % 2, 8), generator=made)  # sizes vary, and graphs stay whole
    return torch.randn(4, 6, WIDTH, generator=made)


def _trained(make: Callable[[], nn.Module], backend: str, steps: int) -> list[torch.Tensor]:
    argand.reset()
    torch.manual_seed(0)
    model = make()
    call = argand.compile(model, backend=backend, fullgraph=True) if backend else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3, foreach=False)
    for step in range(steps):
        optimizer.zero_grad()
        result = call(_batch(model, step))
        result = result.full_tensor() if isinstance(result, DTensor) else result
        result.square().mean().backward()
        optimizer.step()
    state = [optimizer.state[p][name] for p in model.parameters() for name in ("exp_avg", "exp_avg_sq")]
    return [local(result), *map(local, [*model.parameters(), *(p.grad for p in model.parameters()), *state])]


def whole(rank: int) -> dict[str, float]:
    """Each model is one graph, and trains what eager trains."""
    found = {}
    for name, make in MODELS.items():
        if name == "columns and rows" and not sweeps.WHOLE:  # `sharded_blocks` has it
            continue
        steps = MANY if name == "sequences" else 2
        eager = _trained(make, "", steps)
        for backend in ("native", "aot_eager") if name == "DTensors" else ("native",):
            found[f"{name} {backend}"] = difference(_trained(make, backend, steps), eager)
    return found


def sharded_blocks(rank: int) -> dict[str, float]:
    """Parameters of parallel layers in shards, on a mesh of two dimensions: each block is one graph."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("shards", "parts"))
    results = []
    for compiled in (False, True):
        argand.reset()
        torch.manual_seed(0)
        model = by_columns_and_rows(mesh["parts"])
        for block in model.blocks:
            if compiled:
                block.forward = argand.compile(block.forward, fullgraph=True)
            fully_shard(block, mesh=mesh["shards"])
        fully_shard(model, mesh=mesh["shards"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            model(_batch(model, 10 * (rank // 2) + step)).square().mean().backward()
            optimizer.step()
        state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
        results.append([*map(local, [*model.parameters(), *(p.grad for p in model.parameters()), *state])])
    return {"native": difference(results[1], results[0])}


# ------------------------------------------------------------------- single operations


def _programs(mesh: object) -> dict[str, Callable[[torch.Tensor, torch.Tensor], object]]:
    """Of a DTensor in two parts by rows, and of one that every process has."""

    def made(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = x.to_local() * 2
        return DTensor.from_local(part, mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()) + 1

    def laid_out(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.redistribute(mesh, [Shard(1)]).redistribute(placements=[Replicate()]) @ w

    def sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.sum(0).full_tensor() + x.mean().full_tensor()

    def asked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.placements == (Shard(0),) and x.device_mesh.ndim == 1 and x.shape[0] == 8:
            return x * x.size(0) + x.to_local().shape[0]
        return x

    def in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1).mul_(3)
        return y

    def parts(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.chunk(2, dim=1)
        return torch.cat([b, a], 1), torch.stack([a, b]).relu(), a.t()

    def several(x: torch.Tensor, w: torch.Tensor) -> tuple[object, ...]:
        y = x @ w
        return y, y, [x, y.detach()], {"w": w, "local": y.to_local()}

    def partial(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(x.to_local().sum(0), mesh, [Partial()], run_check=False)

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.to_local().sin() * w.to_local().sum()

    def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print(end="")
        return y @ w

    def drawn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + 1

    def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.mul_(1.5)
        return x @ w

    def cast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w).float()

    def part_written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.to_local().mul_(1.5)
        return x @ w

    def distributed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(torch.ones(6, 6), mesh, [Replicate()]) + w * 2

    programs = (
        made,
        laid_out,
        sums,
        asked,
        in_place,
        parts,
        several,
        partial,
        plain,
        broken,
        drawn,
        written,
        cast,
        part_written,
        distributed,
    )
    return {program.__name__: program for program in programs}


_BREAKS = {"broken", "distributed"}


def _told(value: object) -> object:
    """What a result is, with its layout."""
    if isinstance(value, DTensor):
        return [str(value.placements), [*value.shape], [*value.stride()], value.requires_grad, local(value).tolist()]
    if isinstance(value, torch.Tensor):
        return [[*value.shape], value.requires_grad, value.tolist()]
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    return [_told(item) for item in value] if isinstance(value, (list, tuple)) else value


def _leaves(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.full_tensor() if isinstance(value, DTensor) else value]
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in _leaves(item)]  # type: ignore[attr-defined]


def _called(program: Callable[..., object], mesh: object, gradients: bool, calls: int) -> list[object]:
    torch.manual_seed(0)
    told: list[object] = []
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).detach().requires_grad_(gradients)
    w = nn.Parameter(distribute_tensor(torch.randn(6, 6), mesh, [Replicate()]), requires_grad=gradients)
    for _ in range(calls):
        result = program(x, w)
        told.append(_told(result))
        if gradients:
            sum(leaf.double().square().sum() for leaf in _leaves(result) if leaf.requires_grad).backward()
            # A gradient is laid out as what it belongs to where eager's has another local size.
            told += [None if each.grad is None else local(each.grad).tolist() for each in (x, w)]
    uneven = distribute_tensor(torch.randn(7, 6), mesh, [Shard(0)])
    told.append(_told(program(uneven, w)))
    replicas = distribute_tensor(torch.randn(8, 6), mesh, [Replicate()])
    told.append(_told(program(replicas, w)))
    return told


def operations(rank: int) -> dict[str, object]:
    """Programs whose results, layouts and gradients are not eager's; and where a graph breaks that should not."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrong: list[str] = []
    for number, (name, program) in enumerate(_programs(mesh).items()):
        for backend in ("eager", "aot_eager"):
            for gradients in (False, True):
                if not sweeps.WHOLE and (number + (backend == "eager") + gradients) % 2:
                    continue
                argand.reset()
                compiled = argand.compile(program, backend=backend, fullgraph=name not in _BREAKS)
                ours = _called(compiled, mesh, gradients, calls=2)
                if ours != _called(program, mesh, gradients, calls=2):
                    wrong.append(f"{name} {backend} {gradients}")
    argand.reset()
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(6, 6), mesh, [Replicate()])
    breaks = {
        name: [IDS[reason.kind] for reason in argand.explain(_programs(mesh)[name])(x, w).break_reasons]
        for name in sorted(_BREAKS)
    }
    return {"wrong": wrong, "breaks": breaks}


def views(rank: int) -> dict[str, float]:
    """Gradients where a view of a DTensor from outside leaves the graph, beside what is computed with it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def viewed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, w.view(-1), w.t()[1:]

    def alone(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return w.unsqueeze(0).expand(3, 6, 6), x.t()

    def part(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, w.to_local()[1:]

    def part_of_a_sum(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, w.to_local(grad_placements=[Partial()])[1:]

    def cut(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, w.redistribute(placements=[Shard(0)])

    found: dict[str, float] = {}
    for program in (viewed, alone, part, part_of_a_sum, cut):
        gradients = []
        for backend in ("", "aot_eager", "native"):
            argand.reset()
            torch.manual_seed(0)
            x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).detach().requires_grad_()
            w = nn.Parameter(distribute_tensor(torch.randn(6, 6), mesh, [Replicate()]))
            results = (argand.compile(program, backend=backend) if backend else program)(x, w)
            sum(leaf.square().sum() for leaf in _leaves(results)).backward()
            gradients.append([local(x.grad) if x.grad is not None else torch.zeros(1), local(w.grad)])
        found |= {
            f"{program.__name__} {b}": difference(g, gradients[0])
            for b, g in zip(("aot_eager", "native"), gradients[1:])
        }
    return found


def differentiated_apart(rank: int) -> dict[str, float]:
    """Gradients, and how they are laid out, where some of the results are differentiated, which lay them out apart."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, w * 2

    def three(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = w.tanh()
        return x @ y, (y * 2).sum(), y * 3

    found: dict[str, float] = {}
    for program in (two, three):
        for apart in ([0], [1], [0, 1]):
            gradients: list[Any] = []
            for backend in ("", "aot_eager", "native"):
                argand.reset()
                torch.manual_seed(0)
                x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).detach().requires_grad_()
                w = nn.Parameter(distribute_tensor(torch.randn(6, 6), mesh, [Replicate()]))
                results = (argand.compile(program, backend=backend, fullgraph=True) if backend else program)(x, w)
                sum(results[at].square().sum() for at in apart).backward()
                gradients.append([local(one.grad) if one.grad is not None else torch.zeros(1) for one in (x, w)])
                assert not backend or w.grad.placements == w.placements, (program, apart, backend)
            names = [f"{program.__name__} {apart} {backend}" for backend in ("aot_eager", "native")]
            found |= {name: difference(g, gradients[0]) for name, g in zip(names, gradients[1:])}
    return found


def nodes(rank: int) -> int:
    """How many nodes of autograd's lead from a graph to its parameters, of which some are DTensors."""
    argand.reset()
    model = by_columns_and_rows()
    result = argand.compile(model, fullgraph=True)(_batch(model, 0))
    seen, todo = set(), [result.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    assert sum(isinstance(parameter, DTensor) for parameter in model.parameters()) > 1
    return sum("_Local" in node.name() for node in seen)


def stored(rank: int) -> dict[str, Any]:
    """Gradients of parallel layers, and of DTensors that come in and go out; which outcomes were loaded and stored."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(os.environ["MESH_NAME"],))
    seen: list[str] = []
    stop = events.bus.subscribe(
        lambda event: seen.append(event.data["outcome"]) if event.data.get("level") == "outcome" else None, ("cache",)
    )

    def laid_out(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).redistribute(placements=[Replicate()]) + DTensor.from_local(
            w.to_local().tanh(), mesh, [Replicate()]
        )
        return y * 2

    def gradients(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = in_parallel(GPT(layers=1), mesh)
        (argand.compile(model) if compiled else model)(batch(model, 0, 0)).square().mean().backward()
        x = distribute_tensor(torch.randn(6, 6), mesh, [Shard(0)]).detach().requires_grad_()
        w = nn.Parameter(distribute_tensor(torch.randn(6, 6), mesh, [Replicate()]))
        result = (argand.compile(laid_out) if compiled else laid_out)(x, w)
        result.square().sum().backward()
        return [local(p.grad) for p in (*model.parameters(), x, w)]

    ours = gradients(True)
    stop()
    return {"difference": difference(ours, gradients(False)), "seen": sorted(seen)}
