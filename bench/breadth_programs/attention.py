"""Transformers of several kinds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class CausalBlock(nn.Module):
    """A block of a GPT whose attention is written out."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(length, length).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.first(x)).split(c, 2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A hand-written GPT."""

    def __init__(self, width: int = 256, layers: int = 6, length: int = 128, words: int = 5000) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width, 8, length) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(self.norm(x))
        return found


class RotaryBlock(nn.Module):
    """Grouped queries, rotary positions, RMS norms, a gated MLP."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def turned(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat((-b, a), -1) * sin

        b, t, c = x.shape
        y = self.first(x)
        q = self.q(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k, v = (z.repeat_interleave(self.heads // self.groups, 1) for z in (turned(k), v))
        y = F.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Rotary(nn.Module):
    """A decoder with rotary positions."""

    def __init__(self, width: int = 320, layers: int = 4, words: int = 4000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(RotaryBlock(width, 8, 2) for _ in range(layers))
        self.norm, self.half = nn.RMSNorm(width), width // 16

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        speeds = 10000 ** (-torch.arange(self.half, device=ids.device) / self.half)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * speeds
        angles = torch.cat((angles, angles), -1)
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return F.linear(self.norm(x), self.words.weight)


class Speech(nn.Module):
    """An encoder-decoder over frames of sound, as in Whisper."""

    def __init__(self, width: int = 256, layers: int = 3, words: int = 2000) -> None:
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv1d(80, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(448, width) * 0.01)

    def forward(self, frames: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        heard = self.ears(frames).transpose(1, 2)
        for layer in self.encoder:
            heard = layer(heard)
        x = self.words(ids) + self.places[: ids.shape[1]]
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf"), device=ids.device).triu(1)
        for layer in self.decoder:
            x = layer(x, heard, tgt_mask=mask)
        return x @ self.words.weight.T


class WindowBlock(nn.Module):
    """Attention within shifted windows, with relative positions, as in Swin."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("apart", apart[0] * (2 * window - 1) + apart[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        n, kept = self.window, x
        x = self.first(x)
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(b, h // n, n, w // n, n, c).transpose(2, 3).reshape(-1, n * n, c)
        q, k, v = self.qkv(x).view(x.shape[0], n * n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.apart].permute(2, 0, 1)
        scores = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias).softmax(-1)
        x = self.out((scores @ v).transpose(1, 2).reshape(x.shape))
        x = x.view(b, h // n, w // n, n, n, c).transpose(2, 3).reshape(b, h, w, c)
        if self.shift:
            x = torch.roll(x, (self.shift, self.shift), (1, 2))
        x = kept + x
        return x + self.mlp(self.second(x))


class Windows(nn.Module):
    """Two stages of shifted windows."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        self.low = nn.ModuleList(WindowBlock(96, 3, 7, shift) for shift in (0, 3))
        self.merge = nn.Sequential(nn.LayerNorm(384), nn.Linear(384, 192, bias=False))
        self.high = nn.ModuleList(WindowBlock(192, 6, 7, shift) for shift in (0, 3))
        self.head = nn.Linear(192, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for block in self.low:
            x = block(x)
        x = self.merge(torch.cat((x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]), -1))
        for block in self.high:
            x = block(x)
        found: torch.Tensor = self.head(x.mean((1, 2)))
        return found


class Mixer(nn.Module):
    """MLPs over patches and channels in turn."""

    def __init__(self, width: int = 256, patches: int = 196, layers: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)) for _ in range(layers)
        )
        self.within = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width)) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for number, (across, within) in enumerate(zip(self.across, self.within)):
            x = x + across(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * number + 1](x))
        return x.mean(1)


class Linear(nn.Module):
    """Linear attention (elu + 1), one layer norm each side."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        for norm, qkv, out in zip(self.norms, self.qkv, self.out):
            q, k, v = qkv(norm(x)).view(b, t, 3, self.heads, -1).unbind(2)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            held = torch.einsum("bthd,bthe->bhde", k, v)
            scale = 1 / (torch.einsum("bthd,bhd->bth", q, k.sum(1)) + 1e-6)
            x = x + out(torch.einsum("bthd,bhde,bth->bthe", q, held, scale).reshape(b, t, c))
        return x


PROGRAMS: dict[str, Callable[[], Made]] = {
    "GPT by hand": lambda: (Gpt().eval(), (torch.randint(5000, (4, 128)),)),
    "rotary decoder": lambda: (Rotary().eval(), (torch.randint(4000, (4, 128)),)),
    "speech encoder-decoder": lambda: (
        Speech().eval(),
        (torch.randn(2, 80, 400), torch.randint(2000, (2, 48))),
    ),
    "shifted windows": lambda: (Windows().eval(), (torch.randn(4, 3, 224, 224),)),
    "mixer": lambda: (Mixer().eval(), (torch.randn(4, 3, 224, 224),)),
    "linear attention": lambda: (Linear().eval(), (torch.randn(4, 256, 256),)),
}
