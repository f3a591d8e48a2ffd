"""Convolutional networks with depthwise convolutions, written out as their papers have them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Activation = Callable[[], nn.Module]


def conv_norm(ins: int, outs: int, size: int, stride: int, groups: int, act: Activation | None) -> nn.Sequential:
    """A convolution, its batch norm, and an activation."""
    conv = nn.Conv2d(ins, outs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), *([] if act is None else [act()]))


class Excite(nn.Module):
    """Squeeze and excite."""

    def __init__(self, width: int, squeezed: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, squeezed, 1), act(), nn.Conv2d(squeezed, width, 1), gate()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = self.layers(x)
        return x * scale


class Inverted(nn.Module):
    """An inverted residual: wider by a 1x1 convolution, depthwise, narrower again."""

    def __init__(
        self, ins: int, wide: int, outs: int, size: int, stride: int, act: Activation, excite: nn.Module | None
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [] if wide == ins else [conv_norm(ins, wide, 1, 1, 1, act)]
        layers.append(conv_norm(wide, wide, size, stride, wide, act))
        layers += [] if excite is None else [excite]
        layers.append(conv_norm(wide, outs, 1, 1, 1, None))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and ins == outs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return x + made if self.residual else made


def _head(width: int, hidden: int, act: Activation) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, hidden), act(), nn.Linear(hidden, 1000)]


def mobilenet_v2() -> nn.Module:
    ins, layers = 32, [conv_norm(3, 32, 3, 2, 1, nn.ReLU6)]
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for times, outs, count, stride in rows:
        for number in range(count):
            layers.append(Inverted(ins, ins * times, outs, 3, stride if number == 0 else 1, nn.ReLU6, None))
            ins = outs
    last = conv_norm(ins, 1280, 1, 1, 1, nn.ReLU6)
    return nn.Sequential(*layers, last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


# size of the window, wide, results, squeeze and excite, hard-swish, stride
_LARGE = (
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
)  # fmt: skip
_SMALL = (
    (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1),
    (5, 240, 40, 1, 1, 1), (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1),
    (5, 576, 96, 1, 1, 1),
)  # fmt: skip


def _mobilenet_v3(rows: tuple[tuple[int, ...], ...], last: int, hidden: int) -> nn.Module:
    ins, layers = 16, [conv_norm(3, 16, 3, 2, 1, nn.Hardswish)]
    for size, wide, outs, excites, swishes, stride in rows:
        excite = Excite(wide, (wide // 4 + 7) // 8 * 8, nn.ReLU, nn.Hardsigmoid) if excites else None
        layers.append(Inverted(ins, wide, outs, size, stride, nn.Hardswish if swishes else nn.ReLU, excite))
        ins = outs
    return nn.Sequential(*layers, conv_norm(ins, last, 1, 1, 1, nn.Hardswish), *_head(last, hidden, nn.Hardswish))


def mobilenet_v3_large() -> nn.Module:
    return _mobilenet_v3(_LARGE, 960, 1280)


def mobilenet_v3_small() -> nn.Module:
    return _mobilenet_v3(_SMALL, 576, 1024)


def efficientnet_b0() -> nn.Module:
    ins, layers = 32, [conv_norm(3, 32, 3, 2, 1, nn.SiLU)]
    rows = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
            (6, 5, 2, 192, 4), (6, 3, 1, 320, 1))  # fmt: skip
    for times, size, stride, outs, count in rows:
        for number in range(count):
            excite = Excite(ins * times, max(ins // 4, 1), nn.SiLU, nn.Sigmoid)
            layers.append(Inverted(ins, ins * times, outs, size, stride if number == 0 else 1, nn.SiLU, excite))
            ins = outs
    last = conv_norm(ins, 1280, 1, 1, 1, nn.SiLU)
    return nn.Sequential(*layers, last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Norm(nn.LayerNorm):
    """A layer norm of the channels of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layers = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.layers(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    widths, layers = (96, 192, 384, 768), [nn.Conv2d(3, 96, 4, 4), Norm(96, eps=1e-6)]
    for place, (width, depth) in enumerate(zip(widths, (3, 3, 9, 3))):
        if place:
            layers += [Norm(widths[place - 1], eps=1e-6), nn.Conv2d(widths[place - 1], width, 2, 2)]
        layers += [NextBlock(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MobileNetV2": mobilenet_v2,
    "MobileNetV3-small": mobilenet_v3_small,
    "MobileNetV3-large": mobilenet_v3_large,
    "EfficientNet-B0": efficientnet_b0,
    "ConvNeXt-tiny": convnext_tiny,
}
