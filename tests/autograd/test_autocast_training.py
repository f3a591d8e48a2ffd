"""bf16 autocast in training: compiled gradients are as near to the exact ones as eager's are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand

MARGIN = 1.5  # times eager's own error
BF16 = torch.bfloat16


class Attention(nn.Module):
    """A transformer layer as BERT and GPT-2 have it; the softmax is kept in float32 by a nested block."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 50)
        self.causal = causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.mix(self.norm(x)).view(*ids.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.causal:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2)
            with torch.autocast("cpu", enabled=False):
                weights = (scores.to(x.dtype) / 8**0.5).softmax(-1)
            y = weights.to(v.dtype) @ v
        x = x + self.out(y.transpose(1, 2).reshape(*ids.shape, 32))
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.one(x)), inplace=True)
        z = self.two(y)
        z += y  # in place, as torchvision's blocks are written
        return self.head(F.relu(z, inplace=True).mean((2, 3)))


def ids() -> torch.Tensor:
    return torch.arange(32).view(2, 16) * 7 % 50


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "bert": (lambda: Attention(False), ids),
    "gpt2": (lambda: Attention(True), ids),
    "resnet": (Convolutions, lambda: torch.sin(torch.arange(2 * 3 * 8 * 8.0)).view(2, 3, 8, 8)),
}


def gradients(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor, half: bool) -> dict[str, Any]:
    model.zero_grad()
    with torch.autocast("cpu", dtype=BF16, enabled=half):
        out = call(x)
        loss = out.pow(2).mean() if not half else out.float().pow(2).mean()
    loss.backward()
    return {name: p.grad.double().clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_are_as_exact_as_eagers(name: str, backend: str) -> None:
    torch.manual_seed(0)
    make, given = MODELS[name]
    model, x = make(), given()
    exact_model = copy.deepcopy(model).double()
    exact = gradients(exact_model, exact_model, x.double() if x.is_floating_point() else x, half=False)
    eager = gradients(model, model, x, half=True)
    compiled = argand.compile(copied := copy.deepcopy(model), backend=backend, fullgraph=True)
    for _ in range(2):
        found = gradients(copied, compiled, x, half=True)
    assert list(found) == list(eager)
    floor = 1e-3 * max(float(g.norm()) for g in exact.values())
    for key, want in exact.items():
        mine, theirs = (float((g[key] - want).norm()) for g in (found, eager))
        assert mine <= MARGIN * theirs + floor, key
    exactly = gradients(copied, compiled, x, half=False)  # outside of autocast it is another program
    torch.testing.assert_close(exactly, gradients(model, model, x, half=False), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_autocast_inside_the_function_and_off_again(backend: str) -> None:
    """Casts happen where eager's do, in the backward too."""

    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=BF16):
            a = x @ w
            with torch.autocast("cpu", enabled=False):
                b = x @ v
                with torch.autocast("cpu", dtype=BF16):
                    c = x @ v
            d = a @ w
        return a, b, c, d, x @ w

    results = []
    for call in (fn, argand.compile(fn, backend=backend)):
        torch.manual_seed(0)
        given = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
        out = call(*given)
        total = sum((o.float() ** 2).sum() for o in out)
        total.backward()
        results.append(([o.detach() for o in out], [t.grad for t in given]))
    assert [o.dtype for o in results[1][0]] == [BF16, torch.float32, BF16, BF16, torch.float32]
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_scaler_skips_the_step_where_a_gradient_overflows(backend: str) -> None:
    results = []
    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend)):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        forward, scales = wrap(model), []
        for i in range(5):
            with torch.autocast("cpu", dtype=BF16):
                loss = forward(torch.full((2, 4), 1e32 if i == 2 else 1.0)).float().pow(2).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        results.append((scales, [p.detach() for p in model.parameters()]))
    assert results[1][0] == results[0][0] and results[0][0][2] < results[0][0][1]
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-3, atol=1e-4)


@torch.library.custom_op("argand_tests::product_in_python", mutates_args=())
def product_in_python(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w).float()


@product_in_python.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


def exact_part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return (x @ w).tanh() @ w


def other_dtype(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return (x @ w).tanh()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn", [exact_part, other_dtype, lambda x, w: product_in_python(x, w) + 1])
def test_autocast_around_the_call_is_what_the_function_makes_of_it(fn: Callable[..., Any], backend: str) -> None:
    """A compiled program has its casts in it, and runs without more; its backward runs where autocast is off."""
    compiled = argand.compile(fn, backend=backend)
    for training in (False, fn is not other_dtype and fn.__name__ != "<lambda>"):
        outcomes = []
        for run in (fn, compiled):
            torch.manual_seed(0)
            x, w = (torch.randn(8, 8, requires_grad=training) for _ in range(2))
            with torch.autocast("cpu", dtype=BF16):
                result = run(x, w)
            gradients = torch.autograd.grad(result.square().sum(), (x, w)) if training else ()
            outcomes.append((result, *gradients))
        for got, want in zip(*outcomes[::-1]):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
