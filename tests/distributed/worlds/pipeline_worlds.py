"""Random pipelines of compiled stages."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

import argand
from distributed.models import GPT, Llama
from distributed.pipeline_programs import Stage, loss_of, untied
from distributed.worlds.world_models import DEVICE

STEPS = 4
SCHEDULES = {  # stages on each rank
    "ScheduleGPipe": 1, "Schedule1F1B": 1, "ScheduleInterleaved1F1B": 2, "ScheduleLoopedBFS": 2,
    "ScheduleInterleavedZeroBubble": 2, "ScheduleZBVZeroBubble": 2,
}  # fmt: skip


def nodes_outlive_results() -> bool:
    """Whether nodes of functions can be asked behind their results: a backward in two parts does, and raises with any
    autograd.Function, the program's own too, where they cannot (torch 2.11)."""
    node: Any = Doubled.apply(torch.ones(1, requires_grad=True)).grad_fn
    try:
        return bool(node._input_metadata)
    except RuntimeError:
        return False


class Doubled(torch.autograd.Function):
    """Some function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def drawn(chance: random.Random) -> dict[str, Any]:
    rarely = lambda value, other, share=0.2: value if chance.random() < share else other  # noqa: E731
    known = [name for name in SCHEDULES if hasattr(pipelining, name)]
    schedule = chance.choice([name for name in known if nodes_outlive_results() or "ZeroBubble" not in name])
    splits = "ZeroBubble" in schedule  # torch takes no compiled stages then
    return {
        "model": chance.choice(["gpt", "llama"]),
        "schedule": schedule,
        "microbatches": chance.choice([4, 4, 8]),
        "how": "blocks" if splits else chance.choice(["stages", "stages", "blocks", "one rank"]),
        "frozen": rarely(not splits, False),
        "eval": rarely(schedule != "ScheduleZBVZeroBubble", False, 0.3),  # where torch fails
        "accumulate": rarely(2, 1),
    }


def train(rank: int, world: dict[str, Any], backend: str) -> list[Any]:
    """Parameters, gradients of each step, optimizer states and losses."""
    size, each = dist.get_world_size(), SCHEDULES[world["schedule"]]
    torch.manual_seed(0)
    model = untied({"gpt": GPT, "llama": Llama}[world["model"]], 2 * size).to(DEVICE)
    if world["frozen"]:
        model.blocks[1].requires_grad_(False)
    count = size * each
    numbers = [rank + size * n for n in range(each)]
    if world["schedule"] == "ScheduleZBVZeroBubble":
        numbers = [rank, count - 1 - rank]
    mine = [Stage(model, number, count) for number in numbers]
    calls: list[Any] = list(mine)
    if backend and world["how"] == "blocks":
        for stage in mine:
            for block in stage.blocks:
                block.forward = argand.compile(block.forward, backend=backend)
    elif backend and (world["how"] == "stages" or rank == 0):
        calls = [argand.compile(stage, backend=backend) for stage in mine]
    stages = [PipelineStage(call, number, count, torch.device(DEVICE)) for call, number in zip(calls, numbers)]
    kind = getattr(pipelining, world["schedule"])
    plan = kind(stages if each > 1 else stages[0], world["microbatches"], loss_fn=loss_of)
    parameters = [p for stage in mine for p in stage.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    seen: list[Any] = []
    has_last = count - 1 in numbers
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(world["accumulate"]):
            ids = torch.randint(0, 96, (8, 16), generator=torch.Generator().manual_seed(10 * step + part)).to(DEVICE)
            losses: list[torch.Tensor] = []
            given = {"target": ids, "losses": losses} if has_last else {}
            plan.step(*([ids] if 0 in numbers else []), **given)
            seen += [loss.detach().clone() for loss in losses]
        seen += [None if p.grad is None else p.grad.clone() for p in parameters]
        optimizer.step()
        if world["eval"] and step == 1 and hasattr(plan, "eval"):
            ids = torch.randint(0, 96, (8, 16), generator=torch.Generator().manual_seed(99)).to(DEVICE)
            given = {"target": ids, "losses": losses} if has_last else {}
            plan.eval(*([ids] if 0 in numbers else []), **given)
    states = [optimizer.state[p]["momentum_buffer"] for p in parameters if p in optimizer.state]
    return [*seen, *parameters, *states]
