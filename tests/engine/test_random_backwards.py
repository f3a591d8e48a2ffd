"""Random graphs of operations, some compiled, some with hooks: each backward gives eager's gradients, bit for bit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import assert_same, collected

Tensors = list[torch.Tensor]


def _pick(draw: random.Random, known: Tensors) -> torch.Tensor:
    return known[draw.randrange(len(known))]


_ONE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.sin,
    torch.sigmoid,
    lambda x: x * 2,
    lambda x: x.t(),
    lambda x: x.softmax(1),
    lambda x: x.cumsum(0),
    lambda x: x[[2, 0, 1, 0]],
    lambda x: x.flip(0) + x[0],
    lambda x: x.relu().detach() * x,
    lambda x: torch.nn.functional.layer_norm(x, (4,)),
    lambda x: x.unbind(0)[1].expand(4, 4),
    lambda x: x.split(2)[0].repeat(2, 1),
    lambda x: x.view(2, 8).max(1, keepdim=True).values.expand(2, 8).reshape(4, 4),
    lambda x: x.masked_fill(torch.eye(4, dtype=torch.bool), 0.5),
    lambda x: x.double().mean(0).float() * torch.ones(4, 4),
    lambda x: x.mul(3).add_(1),
    lambda x: torch.where(x > 0, x, x.exp()),
    lambda x: torch.nn.functional.pad(x, (1, 0))[:, :4],
    lambda x: x.as_strided((4, 4), (1, 4)),
]
_TWO: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    torch.add,
    torch.mul,
    torch.mm,
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: torch.stack([x, y]).sum(0),
    lambda x, y: x / (y.square() + 1),
    lambda x, y: torch.addmm(x, y, x.t(), beta=0.5),
]


def program(seed: int) -> Callable[[Tensors, int], None]:
    """A training step on leaves, the same graph in each step but for what the step's number decides."""
    draw = random.Random(seed)
    steps = [(draw.randrange(3), draw.randrange(100), draw.randrange(100)) for _ in range(draw.randint(2, 9))]
    hooked = draw.randrange(len(steps)) if draw.random() < 0.25 else -1
    varied = draw.random() < 0.3
    retain = draw.random() < 0.2
    compiled = draw.random() < 0.5

    def forward(leaves: Tensors, round: int) -> torch.Tensor:
        known = list(leaves)
        for at, (kind, first, second) in enumerate(steps):
            x, y = known[first % len(known)], known[second % len(known)]
            if kind:
                made = _TWO[(first * second + kind) % len(_TWO)](x, y)
            else:
                made = _ONE[(first + second + (round if varied else 0)) % len(_ONE)](x)
            if at == hooked:
                made.register_hook(lambda grad: grad * 0.5)
            known.append(made)
        return known[-1].sum() + known[-2].mean()

    def step(leaves: Tensors, round: int) -> None:
        run: Any = argand.compile(forward, backend="eager") if compiled and hooked < 0 else forward
        loss = run(leaves, round % 2)
        if loss.requires_grad:
            loss.backward(retain_graph=retain)
            if retain:
                loss.backward()

    return step


def gradients(step: Callable[[Tensors, int], None], ours: bool) -> list[Any]:
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    seen = []
    for round in range(5):
        with argand.compiled_autograd(backend="eager") if ours else contextlib.nullcontext():
            try:
                step(leaves, round)
            except RuntimeError as error:
                return [*seen, [str(error)]]
        seen.append([None if leaf.grad is None else (leaf.grad.clone(), leaf.grad.stride()) for leaf in leaves])
        if round % 2:
            leaves[0].grad = None
    return seen


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 200, 25)], ids=str)
def test_random_backwards(seeds: range) -> None:
    recorded = 0
    for seed in seeds:
        step = program(seed)
        want = gradients(step, False)
        with collected("compiled_autograd_graph") as events:
            got = gradients(step, True)
        recorded += bool(events)
        assert_same(want, got, exact=True)
    assert recorded > len(seeds) // 4
