"""Small models of the kinds that are trained in parallel."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import sweeps


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 16
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, turned=None) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if turned is not None:
            q, k = turned(q), turned(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class GPTBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """Like GPT-2: learned positions, tied embedding."""

    def __init__(self, width: int = 64, layers: int = 3, words: int = 96) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(GPTBlock(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width)
        self.gate, self.up, self.down = nn.Linear(width, 128), nn.Linear(width, 128), nn.Linear(128, width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def turned(value: torch.Tensor) -> torch.Tensor:
            left, right = value.chunk(2, -1)
            return value * cos + torch.cat((-right, left), -1) * sin

        x = x + self.attention(self.first(x), turned)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Like Llama: rotary positions made under no_grad and without autocast, RMS norms, gated units."""

    def __init__(self, width: int = 64, layers: int = 3, words: int = 96) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("rates", 10000.0 ** -(torch.arange(0, 16, 2) / 16), persistent=False)

    @torch.no_grad()
    def angles(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            turns = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.rates)
            both = torch.cat((turns, turns), -1)
            return both.cos(), both.sin()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        cos, sin = self.angles(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class CNN(nn.Module):
    """Convolutions with batch norm, whose buffers DDP broadcasts; in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((3, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(inner, outer, 3, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


MANY = 20 if sweeps.WHOLE else 6
"""In how many steps large models are trained, where it is asked whether results drift apart; the CNN's are always 20."""

ONE_BLOCK, TWO_BLOCKS = partial(GPT, layers=1), partial(GPT, layers=2)
"""For what more blocks, each compiled by itself, would only repeat."""


class SometimesUnused(nn.Module):
    """A layer that some calls do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor, use: bool = True) -> torch.Tensor:
        y = self.first(x).relu()
        if use:
            y = y + self.other(y).tanh()
        return self.last(y)


def batch(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """What a rank trains on in a step."""
    made = torch.Generator().manual_seed(1000 * rank + step)
    if isinstance(model, GPT | Llama):
        return torch.randint(0, 96, (2, 16), generator=made)
    if isinstance(model, CNN):
        return torch.randn(4, 3, 12, 12, generator=made)
    return torch.randn(6, 12, generator=made)
