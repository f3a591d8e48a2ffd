"""torchvision's classifiers, one of each architecture, where torchvision is installed (`.[libraries]`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

ARCHITECTURES = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_400mf",
    "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t",
    "swin_v2_t", "vgg11_bn", "vit_b_16", "wide_resnet50_2",
)  # fmt: skip


def classifier(architecture: str) -> Made:
    """An architecture with random weights, and four images."""
    from torchvision import models

    extra = {"init_weights": False} if architecture in ("googlenet", "inception_v3") else {}
    size = 299 if architecture == "inception_v3" else 224
    model = models.get_model(architecture, weights=None, **extra).eval()
    if isinstance(model, models.VisionTransformer):
        nn.init.normal_(model.heads[-1].weight, std=0.02)  # zero: no gradient would reach anything else
    return model, (torch.randn(4, 3, size, size),)


PROGRAMS: dict[str, Callable[[], Made]] = (
    {f"torchvision {name}": partial(classifier, name) for name in ARCHITECTURES}
    if importlib.util.find_spec("torchvision")
    else {}
)
