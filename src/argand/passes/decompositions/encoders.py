"""The whole layers that torch's modules call in inference: attention of several heads, and a transformer's encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes, device, val

_FLOATS = (torch.float32, torch.float64)
_DIMS = {0: "qk", 1: "bk", 2: "bhqk"}  # of masks, by what torch calls their type: batch, head, query, key


@decomposes(aten._native_multi_head_attention.default)
def _multi_head_attention(
    b: Builder, query: fx.Node, key: fx.Node, value: fx.Node, width: int, heads: int, qkv_weight: fx.Node,
    qkv_bias: fx.Node, weight: fx.Node, bias: fx.Node, mask: Any = None, need_weights: bool = True,
    average: bool = True, mask_type: Any = None,
) -> Any:  # fmt: skip
    """Attention of each head, side by side, times the last weight; its second result is none"""
    if need_weights or not all(_is_plain(x) for x in (query, key, value)) or not _is_known(mask, mask_type):
        return NotImplemented
    unread = _unread(b, mask, mask_type)
    return _attend(b, (query, key, value), heads, (qkv_weight, qkv_bias), (weight, bias), unread), None


@decomposes(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(
    b: Builder, x: fx.Node, width: int, heads: int, qkv_weight: fx.Node, qkv_bias: fx.Node, weight: fx.Node,
    bias: fx.Node, gelu: bool, norm_first: bool, eps: float, norm_weight: fx.Node, norm_bias: fx.Node,
    last_norm_weight: fx.Node, last_norm_bias: fx.Node, up_weight: fx.Node, up_bias: fx.Node, down_weight: fx.Node,
    down_bias: fx.Node, mask: Any = None, mask_type: Any = None,
) -> Any:  # fmt: skip
    """y = x + attention x, then y + MLP y; each norm stands before what it adds to, or behind the sum"""
    if not _is_plain(x) or not _is_known(mask, mask_type):
        return NotImplemented
    norms = (norm_weight, norm_bias), (last_norm_weight, last_norm_bias)

    def normed(of: fx.Node, number: int) -> fx.Node:
        return b(aten.native_layer_norm.default, of, [width], *norms[number], eps)[0]

    y = normed(x, 0) if norm_first else x
    unread = _unread(b, mask, mask_type)
    y = b(aten.add.Tensor, _attend(b, (y, y, y), heads, (qkv_weight, qkv_bias), (weight, bias), unread), x)
    y = y if norm_first else normed(y, 0)
    hidden = _linear(b, normed(y, 1) if norm_first else y, up_weight, up_bias)
    hidden = b((aten.gelu if gelu else aten.relu).default, hidden)
    y = b(aten.add.Tensor, _linear(b, hidden, down_weight, down_bias), y)
    return y if norm_first else normed(y, 1)


def _is_plain(x: fx.Node) -> bool:
    """Whether a sequence is computed here: on a CPU, with elements, of floats that eager's kernels round once."""
    return val(x).dim() == 3 and val(x).numel() > 0 and val(x).dtype in _FLOATS and device(x).type == "cpu"


def _is_known(mask: Any, kind: Any) -> bool:
    """Whether a mask is of a kind that says what its dimensions are."""
    return mask is None or (kind in _DIMS and val(mask).dim() == len(_DIMS[kind]))


def _unread(b: Builder, mask: Any, kind: Any) -> Any:
    """What is not attended to: where a mask is not zero, for its eager kernel takes numbers as truth values."""
    if mask is None:
        return None
    sizes = dict(zip(_DIMS[kind], val(mask).shape))
    return b(aten.view.default, b(aten.ne.Scalar, mask, 0), [sizes.get(dim, 1) for dim in "bhqk"])


def _attend(
    b: Builder,
    inputs: tuple[fx.Node, fx.Node, fx.Node],
    heads: int,
    first: tuple[fx.Node, fx.Node],
    last: tuple[fx.Node, fx.Node],
    unread: Any,
) -> fx.Node:
    query, key, value = inputs
    if query is key is value:
        parts = _heads(b, query, heads, *first)
    elif key is value:
        parts = _heads(b, query, heads, *_rows(b, first, 0, 1)) + _heads(b, key, heads, *_rows(b, first, 1, 3))
    else:
        parts = [_heads(b, x, heads, *_rows(b, first, place, place + 1))[0] for place, x in enumerate(inputs)]
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    attended = b(flash, *parts)[0] if unread is None else _masked(b, parts, unread)
    attended = b(aten.permute.default, attended, [0, 2, 1, 3])
    if not val(attended).is_contiguous():
        attended = b(aten.clone.default, attended, memory_format=torch.contiguous_format)
    batch, length, _, _ = val(attended).shape
    return _linear(b, b(aten.view.default, attended, [batch, length, -1]), *last)


def _masked(b: Builder, parts: list[fx.Node], unread: fx.Node) -> fx.Node:
    """softmax(q k' / sqrt(size of a head)) v, with -inf in place of what is not attended to"""
    (batch, heads, length, size), others = val(parts[0]).shape, val(parts[1]).shape[2]
    query = b(aten.mul.Tensor, parts[0], size**-0.5)
    query, key, value = (_batch_of_heads(b, each) for each in (query, *parts[1:]))
    scores = b(aten.bmm.default, query, b(aten.permute.default, key, [0, 2, 1]))
    scores = b(aten.view.default, scores, [batch, heads, length, others])
    scores = b(aten.masked_fill.Scalar, scores, unread, float("-inf"))
    shares = b(aten.view.default, b(aten._softmax.default, scores, 3, False), [batch * heads, length, others])
    return b(aten.view.default, b(aten.bmm.default, shares, value), [batch, heads, length, size])


def _batch_of_heads(b: Builder, x: fx.Node) -> fx.Node:
    batch, heads, length, size = val(x).shape
    whole = b(aten.clone.default, x, memory_format=torch.contiguous_format)
    return b(aten.view.default, whole, [batch * heads, length, size])


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
