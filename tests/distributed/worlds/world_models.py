"""Small models whose training shows unusual uses of torch.distributed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import argand
from distributed.models import CNN, GPT, Llama, SometimesUnused, batch

WIDTH = 12
DEVICE = os.environ.get("RANKS_DEVICE", "cpu")


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """A row of blocks and a head."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checkpointed(Blocks):
    """Blocks that run again in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x) if number == 0 else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Shared(Blocks):
    """One block in two places, and a weight that two layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2] = self.blocks[0]
        self.blocks[1].down.bias = self.blocks[0].down.bias


class Results(Blocks):
    """Gives a dictionary: a loss and something that no gradient reaches."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        out = super().forward(x)
        return {"out": out, "best": (out.argmax(-1), out.detach().sum()), "text": "a"}


class Counting(Blocks):
    """Counts its calls, and has buffers that it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return super().forward(x - self.mean) * (1 + 0.1 * (self.calls % 2))


class Breaking(Blocks):
    """Breaks the graph between its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if float(x.detach().sum()) > 1e9:
                return x
        return self.head(x)


class PartlyFrozen(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].requires_grad_(False)
        self.blocks[1].up.bias.requires_grad_(False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": Blocks,
    "checkpointed": lambda: Checkpointed(False),
    "checkpointed reentrant": lambda: Checkpointed(True),
    "shared": Shared,
    "results": Results,
    "counting": Counting,
    "breaking": Breaking,
    "partly frozen": PartlyFrozen,
    "unused": SometimesUnused,
    "cnn": CNN,
    "gpt": lambda: GPT(layers=2),
    "llama": lambda: Llama(layers=2),
}


def loss_of(result: object) -> torch.Tensor:
    out = result["out"] if isinstance(result, dict) else result
    assert isinstance(out, torch.Tensor)
    return out.float().square().mean()


def given(model: nn.Module, rank: int, number: int) -> torch.Tensor:
    """A batch, where the ranks compute."""
    return batch(model, rank, number).to(DEVICE)


def local(value: Any) -> Any:
    """The whole of a DTensor; any other value itself."""
    return value.full_tensor() if isinstance(value, DTensor) else value


class Training:
    """What trainings of all worlds have in common: a step and what happens between two are each one's own."""

    model: nn.Module
    call: Any
    backend: str
    how: str
    seen: list[Any]

    def compiled(self, call: Any) -> Any:
        return argand.compile(call, backend=self.backend)

    def train(self, steps: int) -> None:
        recorded = (
            argand.compiled_autograd(backend=self.backend) if "recorded" in self.how else contextlib.nullcontext()
        )
        with recorded:
            for step in range(steps):
                if step == 3:
                    self.happen()
                self.step(step)

    def look(self, x: torch.Tensor, evaluated: bool) -> None:
        """A loss that nobody differentiates."""
        if evaluated:
            self.model.eval()
        with torch.no_grad():
            self.seen.append(loss_of(self.call(x)).clone())
        if evaluated:
            self.model.train()

    def step(self, step: int) -> None:
        raise NotImplementedError

    def happen(self) -> None:
        raise NotImplementedError
