"""What a training program is, and what several of them are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Loss = Callable[..., torch.Tensor]
Made = tuple[nn.Module, tuple[torch.Tensor, ...], Loss, Callable[[nn.Module], torch.optim.Optimizer]]

PROGRAMS: dict[str, Callable[[], Made]] = {}


def program(build: Callable[[], Made]) -> Callable[[], Made]:
    """Enter a program under its function's name."""
    PROGRAMS[build.__name__] = build
    return build


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between."""
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(widths):
        layers += [nn.Linear(ins, outs), act()]
    return nn.Sequential(*layers[:-1])


def _trained(module: nn.Module) -> list[Any]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(_trained(module), 1e-3)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(_trained(module), 1e-3)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(_trained(module), 1e-2, momentum=0.9)
