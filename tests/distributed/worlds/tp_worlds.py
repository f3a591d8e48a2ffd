"""Random plans of tensor parallelism, trained by eager and by argand."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

from distributed.parallel_programs import Model
from distributed.worlds import world_models
from distributed.worlds.world_models import DEVICE, local

STEPS = 5
WIDTH, WORDS = 16, 24
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003, eps=0.01),
}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))


def drawn(chance: random.Random) -> dict[str, Any]:
    rarely = lambda value, other, share=0.2: value if chance.random() < share else other  # noqa: E731
    sequences = chance.random() < 0.3
    return {
        "how": chance.choice(["outer", "outer", "blocks", "step", "recorded outer"]),
        "attention": sequences or chance.random() < 0.8,
        "mlp": "rows" if sequences else chance.choice(["rows", "rows", "columns only", ""]),
        "sequences": sequences,
        "words": rarely(True, False, 0.3),
        "loss": chance.choice(["mean", "mean", "whole", "parallel"]),
        "accumulate": rarely(2, 1),
        "set_to_none": rarely(False, True),
        "optimizer": chance.choice(list(OPTIMIZERS)),
        "clip": rarely(True, False, 0.4),
        "frozen": rarely(True, False, 0.15),
        "event": chance.choice(["", "", "", "eval", "no gradients", "sizes", "load", "raise"]),
    }


def spread(model: Model, world: dict[str, Any], mesh: DeviceMesh) -> Model:
    """The model by the world's plan."""
    cut, whole = Shard(1), Replicate()
    sequences = world["sequences"]
    rows = cut if sequences else whole
    for block in model.blocks:
        plan: dict[str, Any] = {}
        if world["attention"]:
            plan |= {f"attention.{name}": ColwiseParallel() for name in "qkv"}
            plan["attention.o"] = RowwiseParallel(output_layouts=rows)
        if world["mlp"] == "rows":
            plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=rows)}
        elif world["mlp"]:
            plan |= {"mlp.up": ColwiseParallel(output_layouts=whole)}
        if sequences:
            gathered = PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(whole,))
            plan |= {"first": SequenceParallel(), "second": SequenceParallel(), "attention": gathered, "mlp": gathered}
        parallelize_module(block, mesh, plan)
    plan = {}
    if world["words"] or sequences:
        plan["words"] = RowwiseParallel(input_layouts=whole, output_layouts=rows)
    if sequences:
        plan["norm"] = SequenceParallel()
    if world["loss"] == "parallel":
        plan["head"] = ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1), use_local_output=False)
    elif sequences or world["loss"] == "whole":
        plan["head"] = ColwiseParallel(input_layouts=rows, output_layouts=whole)
    return parallelize_module(model, mesh, plan) if plan else model


class Training(world_models.Training):
    """One training of a world; `backend` "" is eager's."""

    def __init__(self, rank: int, world: dict[str, Any], backend: str, mesh: DeviceMesh) -> None:
        self.rank, self.world, self.backend = rank, world, backend
        self.how = world["how"] if backend else ""
        torch.manual_seed(0)
        self.model = spread(Model(WORDS, WIDTH, 4, MLP).to(DEVICE), world, mesh)
        if world["frozen"]:
            self.model.blocks[0].requires_grad_(False)
        if self.how == "blocks":
            for block in self.model.blocks:
                block.forward = self.compiled(block.forward)
        self.finish(mesh)
        self.call: Any = self.compiled(self.model) if self.how.endswith("outer") else self.model
        self.loss = self.compiled(self.loss_of) if self.how == "step" else self.loss_of
        self.parameters = list(self.model.parameters())
        self.optimizer = OPTIMIZERS[world["optimizer"]]([p for p in self.parameters if p.requires_grad])
        for group in self.optimizer.param_groups:
            group["foreach"] = False
        self.seen: list[Any] = []

    def finish(self, mesh: DeviceMesh) -> None:
        """What else is done to the model."""

    def loss_of(self, ids: torch.Tensor) -> torch.Tensor:
        if self.world["loss"] == "mean":
            return self.call(ids).square().mean()
        return F.cross_entropy(self.call(ids).flatten(0, 1), ids.flatten())

    def batch(self, step: int, length: int = 8) -> torch.Tensor:
        return torch.randint(0, WORDS, (2, length), generator=torch.Generator().manual_seed(step)).to(DEVICE)

    def run(self) -> list[Any]:
        self.train(STEPS)
        states = [local(value) for p in self.parameters for _, value in sorted(self.optimizer.state.get(p, {}).items())]
        return [*self.seen, *map(local, self.parameters), *states]

    def step(self, step: int) -> None:
        world, count = self.world, self.world["accumulate"]
        self.optimizer.zero_grad(set_to_none=world["set_to_none"])
        for part in range(count):
            ids = self.batch(step * count + part, 12 if world["event"] == "sizes" and step > 2 else 8)
            with loss_parallel() if world["loss"] == "parallel" else contextlib.nullcontext():
                loss = self.loss(ids)
                loss.backward()
            self.seen.append(local(loss).detach().clone())
        self.seen += [None if p.grad is None else local(p.grad).clone() for p in self.parameters]
        # eager's of the words' lies whole on each rank; argand's is laid out as the parameter (docs/distributed.md)
        rest = [p for p in self.parameters if p is not self.model.words.weight]
        self.seen += [None if p.grad is None else str(getattr(p.grad, "placements", "")) for p in rest]
        if world["clip"]:
            self.seen.append(
                [local(nn.utils.clip_grad_norm_([p], 0.05)).item() > 0 for p in self.parameters if p.grad is not None]
            )
        self.optimizer.step()

    def happen(self) -> None:
        """What happens between two steps."""
        event = self.world["event"]
        if event in ("eval", "no gradients"):
            self.model.train(event != "eval")
            with torch.no_grad():
                self.seen.append(local(self.call(self.batch(77))).clone())
            self.model.train()
        elif event == "load":
            state = {name: value.detach().clone() * 0.5 for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(state)
        elif event == "raise":
            with contextlib.suppress(Exception):
                self.call(torch.full((2, 8), WORDS + 5, device=DEVICE))


def train(rank: int, world: dict[str, Any], backend: str) -> list[Any]:
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    return Training(rank, world, backend, mesh).run()
