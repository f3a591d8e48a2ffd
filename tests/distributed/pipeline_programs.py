"""Pipeline stages by eager and by argand: each rank has one, or two, of the stages of a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import argand
from argand import events
from distributed.models import GPT, Llama

MICROBATCHES = 4


class Stage(nn.Module):
    """Blocks of a model; the first stage embeds, the last has the head."""

    def __init__(self, model: GPT | Llama, number: int, count: int) -> None:
        super().__init__()
        self.words = model.words if number == 0 else None
        each = len(model.blocks) // count
        self.blocks = nn.ModuleList(model.blocks[number * each : (number + 1) * each])
        self.norm, self.head = (model.norm, model.head) if number == count - 1 else (None, None)
        self.turns = isinstance(model, Llama)
        self.register_buffer("angles", torch.randn(2, 16, 16) if self.turns else torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.words is not None:
            x = self.words(x)
        for block in self.blocks:
            x = block(x, self.angles[0], self.angles[1]) if self.turns else block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(made.flatten(0, 1), wanted.flatten())


def untied(make: Any, layers: int) -> Any:
    model = make(layers=layers)
    model.head = nn.Linear(model.head.in_features, model.head.out_features, bias=False)
    return model


def train(rank: int, make: Any, schedule: Any, each: int, backend: str, steps: int) -> tuple[list[torch.Tensor], int]:
    """Parameters, gradients, optimizer states and losses after some steps; and how many graphs were compiled."""
    argand.reset()
    size, graphs = dist.get_world_size(), 0

    def count(event: Any) -> None:
        nonlocal graphs
        graphs += event.name == "graph"

    stop = events.bus.subscribe(count)
    torch.manual_seed(0)
    model = untied(make, size * each)
    numbers = [rank + size * n for n in range(each)]
    mine = [Stage(model, number, size * each) for number in numbers]
    call = [argand.compile(stage, backend=backend) if backend else stage for stage in mine]
    stages = [PipelineStage(c, number, size * each, torch.device("cpu")) for c, number in zip(call, numbers)]
    plan = schedule(stages if each > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    parameters = [p for stage in mine for p in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    last: list[torch.Tensor] = []
    for step in range(steps):
        optimizer.zero_grad()
        ids = torch.randint(0, 96, (8, 16), generator=torch.Generator().manual_seed(step))
        losses: list[torch.Tensor] = []
        plan.step(*([ids] if rank == 0 else []), **({"target": ids, "losses": losses} if rank == size - 1 else {}))
        last += [loss.detach() for loss in losses]
        optimizer.step()
    stop()
    states = [optimizer.state[p]["momentum_buffer"] for p in parameters]
    return [v.detach().clone() for v in (*parameters, *(p.grad for p in parameters), *states, *last)], graphs


def difference(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(ours, eager, strict=True))


def stages(rank: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for make, schedule, each, ways in (
        (GPT, ScheduleGPipe, 1, ("aot_eager", "native")),
        (Llama, Schedule1F1B, 1, ("native",)),
        (GPT, ScheduleInterleaved1F1B, 2, ("eager",)),
    ):
        eager, _ = train(rank, make, schedule, each, "", 3)
        for backend in ways:
            ours, graphs = train(rank, make, schedule, each, backend, 3)
            # one for all microbatches and steps; torch before 2.12 asks for shapes by a call without gradients first
            assert graphs == each * (1 if torch.__version__ >= "2.12" else 2), (schedule, graphs)
            found[f"{make.__name__} {schedule.__name__} {backend}"] = difference(ours, eager)
    return found
