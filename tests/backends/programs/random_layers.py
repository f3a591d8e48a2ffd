"""Random programs of like layers, between other operations."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8
Step = Callable[["RandomLayers", int, torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]

STEPS: dict[str, Step] = {
    "linear": lambda m, i, y, at: F.linear(y, m.weights[i], m.rows[i]),
    "scale": lambda m, i, y, at: y * m.rows[i],
    "the next layer's scale": lambda m, i, y, at: y * m.rows[i + 1],
    "norm": lambda m, i, y, at: F.layer_norm(y, (WIDTH,), m.rows[i]),
    "relu": lambda m, i, y, at: torch.relu(y),
    "gelu": lambda m, i, y, at: F.gelu(y),
    "the layer before": lambda m, i, y, at: y * at["before"],
    "two layers before": lambda m, i, y, at: y + at["long before"],
    "mask": lambda m, i, y, at: torch.where(at["mask"], y, torch.zeros_like(y)),
    "centre": lambda m, i, y, at: y - y.mean(-1, keepdim=True),
    "cat": lambda m, i, y, at: torch.cat([y[..., :4], at["x"][..., 4:]], -1),
    "softmax": lambda m, i, y, at: torch.softmax(y, -1),
    "what came in": lambda m, i, y, at: y + at["first"],
    "sort": lambda m, i, y, at: torch.sort(y, -1)[0],
    "products": lambda m, i, y, at: torch.bmm(y, y.transpose(1, 2)) @ y * 0.1,
    "numbers": lambda m, i, y, at: y + torch.arange(WIDTH) * 0.1,
    "transposed": lambda m, i, y, at: y.transpose(1, 2).contiguous().transpose(1, 2),
    "only the second layer": lambda m, i, y, at: y * 1.5 if i == 1 else y,
    "a weight of all": lambda m, i, y, at: y @ m.shared,
}
ENDS: dict[str, Callable[[RandomLayers, torch.Tensor, list[torch.Tensor]], torch.Tensor]] = {
    "tanh": lambda m, x, states: torch.tanh(x),
    "the first state": lambda m, x, states: x + states[0],
    "the last state but one": lambda m, x, states: x * states[-2],
    "all states": lambda m, x, states: torch.stack(states).sum(0),
    "an early weight": lambda m, x, states: x @ m.weights[1],
    "a weight of all": lambda m, x, states: x @ m.shared,
}


class RandomLayers(nn.Module):
    """Takes (2, 3, WIDTH) numbers and a mask of that size."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.count = chance.randint(7, 11)
        self.steps = chance.choices([*STEPS], k=chance.randint(2, 7))
        self.ends = chance.choices([*ENDS], k=chance.randint(1, 3))
        self.adds, self.writes, self.returns = (chance.random() < share for share in (0.7, 0.3, 0.2))
        self.early = chance.choice(["", "", "zeros", "a product", "both"])
        self.weights = nn.ParameterList(torch.rand(WIDTH, WIDTH) / WIDTH for _ in range(self.count + 1))
        self.rows = nn.ParameterList(torch.rand(WIDTH) for _ in range(self.count + 1))
        self.shared = nn.Parameter(torch.rand(WIDTH, WIDTH) / WIDTH)
        for number in range(self.count):
            self.register_buffer(f"mean{number}", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> object:
        at = {"first": x, "before": x, "long before": x, "mask": mask}
        # results that no layer reads: where they are computed is the scheduler's choice
        early = [torch.zeros_like(mask, dtype=torch.float32)] if self.early in ("zeros", "both") else []
        early += [x * 3] if self.early in ("a product", "both") else []
        states = []
        for i in range(self.count):
            y = at["x"] = x
            for name in self.steps:
                y = STEPS[name](self, i, y, at)
            if self.writes:
                getattr(self, f"mean{i}").add_(y.detach().mean((0, 1)))
            at["long before"], at["before"], x = at["before"], x, x + y if self.adds else y
            states.append(x)
        for name in self.ends:
            x = ENDS[name](self, x, states)
        return (x, *early, *states) if self.returns else (x, *early) if early else x
