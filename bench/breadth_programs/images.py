"""Networks of images that make images or boxes, and an encoder with biases of relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def unit(ins: int, outs: int, stride: int = 1) -> nn.Sequential:
    """3x3, norm, ReLU."""
    return nn.Sequential(nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs), nn.ReLU(inplace=True))


class Upwards(nn.Module):
    """A U-Net whose way up is transposed convolutions."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 192)) -> None:
        super().__init__()
        pairs = list(zip(widths[-2::-1], widths[:0:-1]))
        self.down = nn.ModuleList(
            nn.Sequential(unit(ins, outs), unit(outs, outs)) for ins, outs in zip((1, *widths), widths)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(high, low, 2, 2) for low, high in pairs)
        self.mix = nn.ModuleList(nn.Sequential(unit(2 * low, low), unit(low, low)) for low, _ in pairs)
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        kept.pop()
        for up, mix in zip(self.up, self.mix):
            x = mix(torch.cat((kept.pop(), up(x)), 1))
        found: torch.Tensor = self.out(x)
        return found


class Detection(nn.Module):
    """Features of three sizes, shared towers over them, and boxes around each point, as in FCOS."""

    def __init__(self, width: int = 64, classes: int = 20) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 32, 2), unit(32, 64, 2))
        self.stages = nn.ModuleList(
            (nn.Sequential(unit(64, 128, 2), unit(128, 128)), nn.Sequential(unit(128, 256, 2)), unit(256, 256, 2))
        )
        self.across = nn.ModuleList(nn.Conv2d(ins, width, 1) for ins in (128, 256, 256))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.classes, self.boxes = self.tower(width, classes), self.tower(width, 4)
        self.scales = nn.Parameter(torch.ones(3))

    @staticmethod
    def tower(width: int, outs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, outs, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, features = self.stem(x), []
        for stage, across in zip(self.stages, self.across):
            x = stage(x)
            features.append(across(x))
        for number in (1, 0):
            size = features[number].shape[-2:]
            features[number] = features[number] + F.interpolate(features[number + 1], size=size, mode="nearest")
        results = []
        for number, smooth in enumerate(self.smooth):
            y = smooth(features[number])
            sides = F.relu(self.boxes(y) * self.scales[number]).flatten(2).transpose(1, 2)
            places = [torch.arange(n, device=y.device) * 8.0 * 2**number / 256 for n in y.shape[-2:]]
            high, wide = torch.meshgrid(*places, indexing="ij")
            centre = torch.stack((wide, high), -1).reshape(1, -1, 2)
            boxes = centre - sides[..., :2], centre + sides[..., 2:]
            results.append(torch.cat((self.classes(y).flatten(2).transpose(1, 2), *boxes), -1))
        return torch.cat(results, 1)


class Larger(nn.Module):
    """Super-resolution: residual blocks with learned slopes, channels shuffled into points."""

    def __init__(self, width: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.into, self.slope = nn.Conv2d(3, width, 9, padding=4), nn.PReLU()
        self.blocks = nn.ModuleList(self.block(width) for _ in range(depth))
        self.up = nn.Sequential(nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.out = nn.Conv2d(width, 3, 9, padding=4)

    @staticmethod
    def block(width: int) -> nn.Sequential:
        first, second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        return nn.Sequential(first, nn.BatchNorm2d(width), nn.PReLU(), second, nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x = self.slope(self.into(x))
        for block in self.blocks:
            y = y + block(y)
        found: torch.Tensor = self.out(self.up(x + y))
        return found


class RelativeBlock(nn.Module):
    """Attention with biases of relative positions, RMS norms written out, a gated MLP, dropout, as in T5."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.first, self.second = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        def norm(y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return scale * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))

        b, t, c = x.shape
        y = norm(x, self.first)
        q, k, v = (project(y).view(b, t, self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v))
        weights = self.drop((q @ k.transpose(2, 3) + bias).softmax(-1))
        x = x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(b, t, c)))
        y = norm(x, self.second)
        return x + self.drop(self.down(self.drop(F.gelu(self.gate(y), approximate="tanh") * self.up(y))))


class Relative(nn.Module):
    """An encoder of such blocks."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 4, words: int = 3000) -> None:
        super().__init__()
        self.words, self.apart = nn.Embedding(words, width), nn.Embedding(32, heads)
        self.blocks = nn.ModuleList(RelativeBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        apart = places - places[:, None]
        far = 8 + (torch.log(apart.abs().clamp(min=1) / 8) / math.log(128 / 8) * 8).long().clamp(max=7)
        bucket = (apart > 0) * 16 + torch.where(apart.abs() < 8, apart.abs(), far)
        x, bias = self.words(ids), self.apart(bucket).permute(2, 0, 1)[None]
        for block in self.blocks:
            x = block(x, bias)
        found: torch.Tensor = self.head(x)
        return found


PROGRAMS: dict[str, Callable[[], Made]] = {
    "transposed U-Net": lambda: (Upwards().eval(), (torch.randn(2, 1, 96, 96),)),
    "detection": lambda: (Detection().eval(), (torch.randn(1, 3, 256, 256),)),
    "super-resolution": lambda: (Larger().eval(), (torch.randn(1, 3, 64, 64),)),
    "relative positions": lambda: (Relative().eval(), (torch.randint(3000, (4, 96)),)),
}
