"""Tensors of any layout for flex_attention, and the strides of what eager makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import argand


def tensor(rng: random.Random, size: Sequence[int]) -> torch.Tensor:
    """One whose dimensions are in any order in memory, with gaps, or the same along one."""
    order = list(range(len(size)))
    if rng.random() < 0.6:
        rng.shuffle(order)
    wide = [n * (2 if rng.random() < 0.15 else 1) for n in size]
    made = torch.randn([wide[dim] for dim in order]).permute([order.index(dim) for dim in range(len(size))])
    made = made[tuple([slice(0, n) if rng.random() < 0.5 else slice(None, None, w // n) for n, w in zip(size, wide)])]
    for dim, n in enumerate(size):
        if n > 1 and rng.random() < 0.1:
            made = made.select(dim, 0).unsqueeze(dim).expand(size)
    return made


def given(seed: int, widths: Sequence[int]) -> list[torch.Tensor]:
    """Query, key and value; many sides are one."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, keys, length, others = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2)), *rng.choices((1, 1, 3, 5), k=2)
    heads, shared = keys * rng.choice((1, 1, 2)), 1 if rng.random() < 0.15 else batch
    width, value = rng.choice(widths), rng.choice(widths)
    sizes = ((batch, heads, length, width), (shared, keys, others, width), (shared, keys, others, value))
    return [tensor(rng, size) for size in sizes]


def allow_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager computes gradients on the CPU, too, and refuses to hand them out."""
    monkeypatch.setattr(torchs, "_validate_device", nothing)


def nothing(*tensors: torch.Tensor) -> None:
    """What takes the place of the refusal."""


def compare(tensors: Sequence[torch.Tensor], gradients: bool, backend: str) -> None:
    """What eager and argand make, with strides; gradients as `torch.autograd.grad` gives them."""
    (batch, _, length, _), others = tensors[0].shape, tensors[1].shape[2]
    mask = create_block_mask(_all, batch, 1, length, others, device="cpu") if len(tensors[1]) != batch else None

    def fn(q: Any, k: Any, v: Any) -> Any:
        out, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    def run(function: Any) -> list[torch.Tensor]:
        taken = [one.detach().requires_grad_(gradients) for one in tensors]
        out, logs = function(*taken)
        grads = torch.autograd.grad(out.square().sum() + logs.sum(), taken) if gradients else ()
        return [out, logs, *grads]

    want = run(fn)
    argand.reset()
    got = run(argand.compile(fn, backend=backend, fullgraph=True))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    layouts = [(tuple(one.shape), one.stride()) for one in tensors]
    assert [one.stride() for one in got] == [one.stride() for one in want], layouts


def _all(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q + k >= 0
