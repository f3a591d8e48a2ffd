"""The models of `bench/gpu.py`: well-known architectures at their published sizes, random weights, nothing downloaded.

`MODELS[name](short) -> (model, inputs)` on the CPU in float32; `short=True` gives few layers and small inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models import Built, _build, _ids


def bert(short: bool) -> Built:
    from transformers import BertConfig

    config = BertConfig(num_hidden_layers=2 if short else 12)
    return _build("BertForSequenceClassification", config), {"input_ids": _ids(16, 64 if short else 256, 30000)}


def gpt2(short: bool) -> Built:
    from transformers import GPT2Config

    config = GPT2Config(n_layer=2 if short else 12, use_cache=False)
    return _build("GPT2LMHeadModel", config), {"input_ids": _ids(8, 64 if short else 512, 50000)}


def llama(short: bool) -> Built:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=2 if short else 16,
        num_attention_heads=16, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    return _build("LlamaForCausalLM", config), {"input_ids": _ids(4, 64 if short else 512, 32000)}


def mobilebert(short: bool) -> Built:
    from transformers import MobileBertConfig

    config = MobileBertConfig(num_hidden_layers=2 if short else 24)
    return _build("MobileBertForSequenceClassification", config), {"input_ids": _ids(16, 64 if short else 128, 30000)}


def vit(short: bool) -> Built:
    from transformers import ViTConfig

    config = ViTConfig(num_hidden_layers=2 if short else 12)
    return _build("ViTForImageClassification", config), {"pixel_values": torch.randn(4 if short else 32, 3, 224, 224)}


def _from_torchvision(name: str, batch: int) -> Built:
    import torchvision

    torch.manual_seed(0)
    return getattr(torchvision.models, name)(weights=None).eval(), {"x": torch.randn(batch, 3, 224, 224)}


def resnet50(short: bool) -> Built:
    return _from_torchvision("resnet50", 4 if short else 32)


def mobilenet(short: bool) -> Built:
    return _from_torchvision("mobilenet_v3_large", 4 if short else 32)


class Mamba(nn.Module):
    """One selective state-space block, its scan step by step over chunks (Gu and Dao, 2023)."""

    def __init__(self, width: int = 768, state: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 4 * width)
        self.convolution = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.steps = nn.Linear(2 * width, 2 * width)
        self.select = nn.Linear(2 * width, 2 * state)
        self.decay = nn.Parameter(torch.randn(2 * width, state))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, gate = self.into(self.norm(x)).chunk(2, -1)
        z = nn.functional.silu(self.convolution(z.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        delta = nn.functional.softplus(self.steps(z))
        enter, leave = self.select(z).chunk(2, -1)
        decay = (-delta.unsqueeze(-1) * self.decay.exp()).cumsum(1)
        held = ((delta * z).unsqueeze(-1) * enter.unsqueeze(2) * (-decay).clamp(max=20).exp()).cumsum(1) * decay.exp()
        y = (held * leave.unsqueeze(2)).sum(-1)
        return x + self.out(y * nn.functional.silu(gate))


def mamba(short: bool) -> Built:
    torch.manual_seed(0)
    return Mamba().eval(), {"x": torch.randn(2, 64 if short else 256, 768)}


class LanguageModel(nn.Module):
    """Embedding, LSTM layers, a projection."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(10000, 650), nn.Linear(650, 10000)
        self.recurrent = nn.LSTM(650, 650, layers, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.project(self.recurrent(self.embed(ids))[0])
        return found


def lstm(short: bool) -> Built:
    torch.manual_seed(0)
    return LanguageModel(1 if short else 2).eval(), {"ids": _ids(32, 35, 10000)}


class Block(nn.Module):
    """A residual block of a diffusion U-Net, with the time step's embedding added."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, into), nn.GroupNorm(32, out)
        self.a, self.b = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(512, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.a(nn.functional.silu(self.first(x))) + self.time(t)[:, :, None, None]
        found: torch.Tensor = self.skip(x) + self.b(nn.functional.silu(self.second(y)))
        return found


class UNet(nn.Module):
    """A small diffusion U-Net (Ho et al., 2020) of three resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(4, 128, 3, padding=1), nn.Conv2d(128, 4, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.down = nn.ModuleList([Block(128, 128), Block(128, 256), Block(256, 512)])
        self.up = nn.ModuleList([Block(512 + 512, 256), Block(256 + 256, 128), Block(128 + 128, 128)])
        self.middle = Block(512, 512)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        angles = step[:, None] * torch.exp(torch.arange(64, device=x.device) * -0.1439)
        t = self.time(torch.cat((angles.sin(), angles.cos()), 1).to(x.dtype))
        x, kept = self.into(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = block(torch.cat((nn.functional.interpolate(x, scale_factor=2.0), kept.pop()), 1), t)
        found: torch.Tensor = self.out(nn.functional.silu(x))
        return found


def unet(short: bool) -> Built:
    torch.manual_seed(0)
    size = 16 if short else 64
    return UNet().eval(), {"x": torch.randn(4, 4, size, size), "step": torch.rand(4) * 1000}


MODELS: dict[str, Callable[[bool], Any]] = {
    "BERT": bert, "GPT-2": gpt2, "ResNet-50": resnet50, "Llama": llama, "ViT": vit, "MobileBERT": mobilebert,
    "MobileNetV3": mobilenet, "U-Net": unet, "Mamba": mamba, "LSTM": lstm,
}  # fmt: skip
