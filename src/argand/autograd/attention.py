"""Attention on GPUs: masks are laid out so that the fused kernels take them."""

from __future__ import annotations

from typing import Any

import torch

from argand.autograd.values import TraceTensor

_MASK = 3  # its position among the arguments of `scaled_dot_product_attention`


def with_dense_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `scaled_dot_product_attention`, the mask's last dimension contiguous in memory.

    torch refuses its fused kernels for a mask that is spread along the keys (one that masks nothing, say) and computes
    in several steps then, products in float32 among them.
    """
    mask = kwargs.get("attn_mask", args[_MASK] if len(args) > _MASK else None)
    if mask.__class__ is not TraceTensor or mask.device.type == "cpu" or mask.dim() < 2:
        return args, kwargs
    if mask.shape[-1] == 1 or mask.stride(-1) == 1:
        return args, kwargs
    made = mask
    for dim in range(mask.dim() - 1):
        if mask.stride(dim) == 0:
            made = made.narrow(dim, 0, 1)
    made = made.contiguous().expand(mask.shape)
    if "attn_mask" in kwargs:
        return args, {**kwargs, "attn_mask": made}
    return (*args[:_MASK], made, *args[_MASK + 1 :]), kwargs


ATTENTION = torch.nn.functional.scaled_dot_product_attention
