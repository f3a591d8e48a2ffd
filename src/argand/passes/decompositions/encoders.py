"""The whole layers that torch's modules call in inference: attention of several heads, and a transformer's encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, device, val

_FLOATS = (torch.float32, torch.float64)


@decomposes(aten._native_multi_head_attention.default)
def _multi_head_attention(
    b: Builder, query: fx.Node, key: fx.Node, value: fx.Node, width: int, heads: int, qkv_weight: fx.Node,
    qkv_bias: fx.Node, weight: fx.Node, bias: fx.Node, mask: Any = None, need_weights: bool = True,
    average: bool = True, mask_type: Any = None,
) -> Any:  # fmt: skip
    """Attention of each head, side by side, times the last weight; its second result is none"""
    if mask is not None or need_weights or not all(_is_plain(x) for x in (query, key, value)):
        return NotImplemented
    return _attend(b, (query, key, value), heads, (qkv_weight, qkv_bias), (weight, bias)), None


@decomposes(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(
    b: Builder, x: fx.Node, width: int, heads: int, qkv_weight: fx.Node, qkv_bias: fx.Node, weight: fx.Node,
    bias: fx.Node, gelu: bool, norm_first: bool, eps: float, norm_weight: fx.Node, norm_bias: fx.Node,
    last_norm_weight: fx.Node, last_norm_bias: fx.Node, up_weight: fx.Node, up_bias: fx.Node, down_weight: fx.Node,
    down_bias: fx.Node, mask: Any = None, mask_type: Any = None,
) -> Any:  # fmt: skip
    """y = x + attention x, then y + MLP y; each norm stands before what it adds to, or behind the sum"""
    if mask is not None or not _is_plain(x):
        return NotImplemented
    norms = (norm_weight, norm_bias), (last_norm_weight, last_norm_bias)

    def normed(of: fx.Node, number: int) -> fx.Node:
        return b(aten.native_layer_norm.default, of, [width], *norms[number], eps)[0]

    y = normed(x, 0) if norm_first else x
    y = b(aten.add.Tensor, _attend(b, (y, y, y), heads, (qkv_weight, qkv_bias), (weight, bias)), x)
    y = y if norm_first else normed(y, 0)
    hidden = _linear(b, normed(y, 1) if norm_first else y, up_weight, up_bias)
    hidden = b((aten.gelu if gelu else aten.relu).default, hidden)
    y = b(aten.add.Tensor, _linear(b, hidden, down_weight, down_bias), y)
    return y if norm_first else normed(y, 1)


def _is_plain(x: fx.Node) -> bool:
    """Whether a sequence is computed here: on a CPU, with elements, of floats that eager's kernels round once."""
    return val(x).dim() == 3 and val(x).numel() > 0 and val(x).dtype in _FLOATS and device(x).type == "cpu"


def _attend(
    b: Builder,
    inputs: tuple[fx.Node, fx.Node, fx.Node],
    heads: int,
    first: tuple[fx.Node, fx.Node],
    last: tuple[fx.Node, fx.Node],
) -> fx.Node:
    query, key, value = inputs
    if query is key is value:
        parts = _heads(b, query, heads, *first)
    elif key is value:
        parts = _heads(b, query, heads, *_rows(b, first, 0, 1)) + _heads(b, key, heads, *_rows(b, first, 1, 3))
    else:
        parts = [_heads(b, x, heads, *_rows(b, first, place, place + 1))[0] for place, x in enumerate(inputs)]
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    attended = b(aten.permute.default, b(flash, *parts)[0], [0, 2, 1, 3])
    if not val(attended).is_contiguous():
        attended = b(aten.clone.default, attended, memory_format=torch.contiguous_format)
    batch, length, _, _ = val(attended).shape
    return _linear(b, b(aten.view.default, attended, [batch, length, -1]), *last)


def _rows(b: Builder, of: tuple[fx.Node, fx.Node], begin: int, end: int) -> tuple[fx.Node, fx.Node]:
    """The weight and bias for some of query, key and value."""
    width = val(of[0]).shape[1]
    weight, bias = (b(aten.slice.Tensor, each, 0, begin * width, end * width) for each in of)
    return weight, bias


def _heads(b: Builder, x: fx.Node, heads: int, weight: fx.Node, bias: fx.Node) -> list[fx.Node]:
    """What a weight makes of x, for each part of the size of x: (batch, heads, length, size of a head)."""
    batch, length, width = val(x).shape
    parts = val(weight).shape[0] // width
    y = b(aten.view.default, _linear(b, x, weight, bias), [batch, length, parts, heads, width // heads])
    y = b(aten.permute.default, y, [2, 0, 3, 1, 4])
    return [b(aten.select.int, y, 0, number) for number in range(parts)]


def _linear(b: Builder, x: fx.Node, weight: fx.Node, bias: fx.Node) -> fx.Node:
    batch, length, width = val(x).shape
    if not val(x).is_contiguous():
        x = b(aten.clone.default, x, memory_format=torch.contiguous_format)
    flat = b(aten.view.default, x, [batch * length, width])
    y = b(aten.addmm.default, bias, flat, b(aten.permute.default, weight, [1, 0]))
    return b(aten.view.default, y, [batch, length, -1])
