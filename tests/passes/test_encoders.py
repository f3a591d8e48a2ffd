"""Layers that torch's modules call whole in inference: taken apart, with eager's results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import argand
import sweeps
from helpers import texts_of

WHOLE = ("aten._transformer_encoder_layer_fwd", "aten._native_multi_head_attention")


@pytest.fixture
def code() -> Iterator[list[str]]:
    argand.reset()
    with texts_of("output_code") as texts:
        yield texts
    argand.reset()


def scattered(module: nn.Module) -> nn.Module:
    """No bias is zero, no scale one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return module.eval()


def calls_whole(code: list[str]) -> bool:
    lines = [line.split("#")[0] for text in code for line in text.splitlines()]
    return any(f"torch.ops.{name}" in line for line in lines for name in WHOLE)


@pytest.mark.parametrize(
    ("dynamic", "norm_first", "activation"), sweeps.combinations([False, True], [False, True], ["relu", "gelu"])
)
def test_encoder_layers(activation: str, norm_first: bool, dynamic: bool, code: list[str]) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 48, activation=activation, norm_first=norm_first, batch_first=True)
    scattered(layer)
    compiled = argand.compile(layer, dynamic=dynamic)
    with torch.no_grad():
        for length in (5, 7) if dynamic else (5,):
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
    assert code and not calls_whole(code)


def test_attention_of_several_heads(code: list[str]) -> None:
    attention = scattered(nn.MultiheadAttention(32, 4, batch_first=True))

    def attend(x: torch.Tensor, y: torch.Tensor) -> list[object]:
        pairs = ((x, x, x), (x, y, y), (x, y, y * 2), (x.transpose(0, 1), y.transpose(0, 1), y.transpose(0, 1)))
        return [attention(*each, need_weights=False) for each in pairs]

    x, y = torch.randn(3, 3, 32), torch.randn(3, 3, 32)
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(attend)(x, y), attend(x, y), rtol=1e-5, atol=1e-5)
    assert code and not calls_whole(code)


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks(dynamic: bool, code: list[str]) -> None:
    """Of queries and keys, of a batch's keys, of both; eager's kernel takes numbers as truth values. A row may see nothing."""
    layer = scattered(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True))
    attention = scattered(nn.MultiheadAttention(32, 4, batch_first=True))

    def run(x: torch.Tensor, later: torch.Tensor, unread: torch.Tensor) -> list[object]:
        numbers = torch.zeros_like(later, dtype=x.dtype).masked_fill(later, float("-inf"))
        return [
            layer(x, src_mask=later),
            layer(x, src_mask=numbers, is_causal=True),
            layer(x, src_mask=numbers + 0.5),
            layer(x, src_key_padding_mask=unread),
            layer(x, src_mask=later, src_key_padding_mask=unread),
            attention(x, x, x, attn_mask=later, need_weights=False),
            attention(x, x, x, key_padding_mask=unread, need_weights=False),
            torch._transformer_encoder_layer_fwd(*whole(layer, x), later, 0),
        ]

    compiled = argand.compile(run, dynamic=dynamic)
    with torch.no_grad():
        for length in (6, 9) if dynamic else (6,):
            x, later = torch.randn(2, length, 32), torch.ones(length, length, dtype=torch.bool).triu(1)
            later[2] = True
            unread = torch.arange(length)[None] > torch.tensor([3, 5])[:, None]
            want = run(x, later, unread)
            torch.testing.assert_close(compiled(x, later, unread), want, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert code and not calls_whole(code)


def whole(layer: nn.TransformerEncoderLayer, x: torch.Tensor) -> list[object]:
    """Arguments of the operation that is a layer, up to its mask."""
    attention, norms = layer.self_attn, (layer.norm1, layer.norm2)
    first = [attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias]
    rest = [p for norm in norms for p in (norm.weight, norm.bias)]
    rest += [p for linear in (layer.linear1, layer.linear2) for p in (linear.weight, linear.bias)]
    return [x, 32, 4, *first, False, False, layer.norm1.eps, *rest]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stays_whole(dtype: torch.dtype) -> None:
    """Weights that are wanted, other floats."""
    attention = scattered(nn.MultiheadAttention(32, 4, batch_first=True)).to(dtype)
    layer = scattered(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)).to(dtype)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    unread = torch.arange(6)[None] > torch.tensor([3, 5])[:, None]

    def run(x: torch.Tensor) -> list[object]:
        masked = attention(x, x, x, attn_mask=later, need_weights=False)
        return [masked, attention(x, x, x), layer(x, src_key_padding_mask=unread), layer(x)]

    x = torch.randn(2, 6, 32).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(run)(x), run(x), rtol=tolerance, atol=tolerance)
