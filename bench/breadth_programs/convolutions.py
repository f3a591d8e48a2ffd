"""Convolutional networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import depthwise_models
import gpu_models

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def unit(ins: int, outs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution, its batch norm, a ReLU."""
    conv = nn.Conv2d(ins, outs, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3, 1x1."""

    def __init__(self, ins: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            unit(ins, width, 1),
            unit(width, width, 3, stride),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = stride == 1 and ins == 4 * width
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(ins, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layers(x) + self.skip(x))


def resnet50() -> nn.Module:
    ins, layers = 64, [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(depth):
            layers.append(Bottleneck(ins, width, 2 if number == 0 and width > 64 else 1))
            ins = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class DenseLayer(nn.Module):
    """Norm, 1x1, norm, 3x3; its result is appended to its input."""

    def __init__(self, ins: int, growth: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(ins), nn.BatchNorm2d(4 * growth)
        self.narrow = nn.Conv2d(ins, 4 * growth, 1, bias=False)
        self.wide = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(F.relu(self.first(x)))
        return torch.cat((x, self.wide(F.relu(self.second(y)))), 1)


def densely_connected(depths: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> nn.Module:
    width, layers = 64, [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for place, depth in enumerate(depths):
        for _ in range(depth):
            layers.append(DenseLayer(width, growth))
            width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if place < len(depths) - 1:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


class Segmentation(nn.Module):
    """A U-Net of batch norms and bilinear upsampling."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(unit(ins, outs), unit(outs, outs)) for ins, outs in zip((3, *widths), widths)
        )
        self.up = nn.ModuleList(
            nn.Sequential(unit(low + high, high), unit(high, high)) for low, high in zip(widths[:0:-1], widths[-2::-1])
        )
        self.out = nn.Conv2d(widths[0], 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2) if len(kept) < len(self.down) else x
        kept.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat((x, kept.pop()), 1))
        found: torch.Tensor = self.out(x)
        return found


class Shuffle(nn.Module):
    """Half of the channels through 1x1, depthwise, 1x1; then channels are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.layers = nn.Sequential(
            unit(half, half, 1),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            unit(half, half, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat((a, self.layers(b)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shuffled() -> nn.Module:
    layers: list[nn.Module] = [unit(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    ins = 24
    for width, depth in ((116, 4), (232, 8), (464, 4)):
        layers += [unit(ins, width, 3, 2), *(Shuffle(width) for _ in range(depth))]
        ins = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(464, 1000))


class Codes(nn.Module):
    """A variational autoencoder of strided and transposed convolutions; the noise is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.GroupNorm(8, 64),
            nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.GroupNorm(8, 128), nn.LeakyReLU(0.2),
        )  # fmt: skip
        self.mean, self.spread = nn.Conv2d(128, 16, 1), nn.Conv2d(128, 16, 1)
        self.out = nn.Sequential(
            nn.ConvTranspose2d(16, 128, 4, 2, 1), nn.GroupNorm(8, 128), nn.SiLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.GroupNorm(8, 64), nn.SiLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        y = self.into(x)
        mean, spread = self.mean(y), self.spread(y)
        found: torch.Tensor = self.out(mean + noise * (0.5 * spread).exp())
        return found


class Diffusion(nn.Module):
    """The U-Net of `bench/gpu_models.py`, with a step for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.net = gpu_models.UNet()

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x, step)
        return found


def _images(count: int, size: int = 224) -> tuple[torch.Tensor, ...]:
    return (torch.randn(count, 3, size, size),)


PROGRAMS: dict[str, Callable[[], Made]] = {
    "ResNet-50": lambda: (resnet50().eval(), _images(2)),
    "densely connected": lambda: (densely_connected().eval(), _images(2)),
    "mobile (v2)": lambda: (depthwise_models.mobilenet_v2().eval(), _images(4)),
    "mobile (v3 small)": lambda: (depthwise_models.mobilenet_v3_small().eval(), _images(4)),
    "mobile (efficient)": lambda: (depthwise_models.efficientnet_b0().eval(), _images(2)),
    "shuffled channels": lambda: (shuffled().eval(), _images(4)),
    "segmentation": lambda: (Segmentation().eval(), _images(1, 128)),
    "autoencoder": lambda: (Codes().eval(), (torch.randn(8, 3, 64, 64), torch.randn(8, 16, 8, 8))),
    "diffusion": lambda: (Diffusion().eval(), (torch.randn(1, 4, 32, 32), torch.rand(1) * 1000)),
}
