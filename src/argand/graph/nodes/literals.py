"""Small tensors that are written down in a program, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from argand.graph import compat

_MOST: Final = 64 << 10
"""Bytes of a tensor that is told of by its content."""

Packed = tuple[str, tuple[int, ...], str]
"""dtype, sizes, the bytes as hexadecimal digits."""


def packed(tensor: torch.Tensor) -> Packed | None:
    """A tensor by its content; None for one that is large, or no plain tensor of a CPU."""
    if not compat.is_plain_tensor(tensor) or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        return None
    if not tensor.is_contiguous() or tensor.numel() * tensor.element_size() > _MOST:
        return None
    flat = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)  # numpy gives one element stride 0
    content = bytes(flat.view(torch.uint8).tolist())
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content.hex()


def packed_all(tensors: Mapping[str, torch.Tensor]) -> dict[str, Packed] | None:
    """Tensors by their content; None where one cannot be told of."""
    by_name = {name: packed(tensor) for name, tensor in tensors.items()}
    known = {name: each for name, each in by_name.items() if each is not None}
    return known if len(known) == len(by_name) else None


def unpacked(dtype: str, sizes: Any, content: str) -> torch.Tensor:
    """The tensor again."""
    if not content:
        return torch.empty(tuple(sizes), dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray.fromhex(content), dtype=getattr(torch, dtype)).reshape(tuple(sizes)).clone()
