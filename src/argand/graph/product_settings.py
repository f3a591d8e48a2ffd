"""Settings of torch for products and convolutions on GPUs: what float32 ones may be, and the flags of cuDNN as one."""

from __future__ import annotations

import inspect
from typing import Any

import torch

_NOT_THE_PRECISION: dict[str, Any] = {
    name: None for name in inspect.signature(torch.backends.cudnn.set_flags).parameters if name == "_fp32_precision"
}


def cudnn_flags() -> tuple[Any, ...] | None:
    """What `torch.backends.cudnn.set_flags` sets; None where torch itself cannot say."""
    try:
        return torch.backends.cudnn.set_flags(**_NOT_THE_PRECISION)  # which sets none, and returns all
    except RuntimeError:  # the program has set what is about TF32 by torch's newer settings
        return None


def set_cudnn_flags(values: tuple[Any, ...] | None) -> None:
    """Set them to what `cudnn_flags` said."""
    if values is not None:
        torch.backends.cudnn.set_flags(*values)


def float32_products() -> str:
    """What products of float32 numbers on a GPU may be: "tf32" or "ieee"."""
    matmul = torch.backends.cuda.matmul
    try:
        allowed = bool(matmul.allow_tf32)
    except RuntimeError:  # the program has set it by torch's newer setting, whose values this one lacks
        allowed = getattr(matmul, "fp32_precision", "ieee") == "tf32"
    return "tf32" if allowed else "ieee"
