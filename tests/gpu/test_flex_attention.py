"""flex_attention on a GPU: results and gradients as exact as eager's, by kernels."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import argand
from helpers import collected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def late(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q > 200) & (k < q - 150)  # rows that see nothing


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 20) * 20


CASES = {
    "causal": (700, 64, 16, None, causal, torch.bfloat16),
    "groups, a function": (700, 128, 4, soft_cap, causal, torch.bfloat16),
    "rows that see nothing": (700, 64, 16, None, late, torch.bfloat16),
    "float16": (513, 64, 16, soft_cap, None, torch.float16),
    "float32": (300, 128, 16, soft_cap, causal, torch.float32),
    "narrow": (200, 16, 16, None, causal, torch.bfloat16),
    "one query": (1, 64, 16, None, None, torch.bfloat16),
}


@pytest.mark.parametrize("case", CASES)
def test_as_exact_as_eager(case: str) -> None:
    length, width, keys, mod, mask, dtype = CASES[case]
    torch.manual_seed(0)
    sizes = ((2, 16, length, width), (2, keys, length, width), (2, keys, length, width))
    given = [torch.randn(size, device="cuda").to(dtype) for size in sizes]
    blocks = create_block_mask(mask, None, None, length, length, device="cuda") if mask else None

    def fn(q: Any, k: Any, v: Any) -> Any:
        out, aux = flex_attention(q, k, v, mod, blocks, enable_gqa=keys != 16, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    def run(function: Any, kind: torch.dtype) -> list[torch.Tensor]:
        tensors = [tensor.to(kind).requires_grad_() for tensor in given]
        results = function(*tensors)
        generator = torch.Generator("cuda").manual_seed(1)
        noise = [torch.randn(t.shape, device="cuda", generator=generator) for t in results]
        loss = sum((t.double().nan_to_num(0, 0, 0) * n).sum() for t, n in zip(results, noise))
        return [*results, *torch.autograd.grad(loss, tensors)]

    with warnings.catch_warnings(), collected("aot_joint_graph") as graphs:
        warnings.simplefilter("ignore")
        exact, want = run(fn, torch.float64), run(fn, dtype)
        got = run(argand.compile(fn, fullgraph=True), dtype)
    assert "argand.flex_attention_backward" in graphs[-1].text()
    for a, b, c in zip(got, want, exact):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.isinf(), b.isinf())
        scale = c.nan_to_num(0, 0, 0).abs().max()
        mine, theirs = (float((t.double() - c).nan_to_num(0, 0, 0).abs().max() / scale) for t in (a, b))
        assert mine <= 2 * theirs + 1e-5
