"""What a forward keeps: how much, where it lives, and for how long."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events
from argand.codegen.host import memory
from helpers import as_torchs


def kept_sizes(fn: Any, *args: torch.Tensor) -> list[torch.Size]:
    """Shapes of the tensors that are saved for the backward, besides parameters."""
    fn(*args)  # compiles
    found: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(as_torchs(pack), lambda t: t):
        fn(*args)
    parameters = {p.data_ptr() for p in getattr(fn, "parameters", list)()}  # or views of them
    return [t.shape for t in found if t.data_ptr() not in parameters]


def test_a_layer_norm_keeps_its_argument_and_not_its_result() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16))
    x = torch.randn(32, 16)
    call = argand.compile(net)
    assert kept_sizes(call, x).count(torch.Size((32, 64))) == 1
    net.zero_grad()
    call(x).pow(2).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).pow(2).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()])


FROZEN = nn.Linear(8, 8).requires_grad_(False)
SCALE = torch.linspace(1, 2, 8)
BIAS = nn.Parameter(torch.linspace(1, 2, 8))

BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "frozen weights": lambda x: x + FROZEN(x),
    "dropout": lambda x: F.dropout(x, 0.5, True) + x,
    "cat": lambda x: torch.cat([x, x * SCALE])[: x.shape[0]] + BIAS,
    "its argument": lambda x: x + x.sin(),
}


def alive_between(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Three blocks in a row: the result, and how many of the tensors between them are alive."""
    between = []
    for _ in range(3):
        x = run(x)
        between.append(weakref.ref(x))
    result = x.sum()
    del x
    return result, sum(each() is not None for each in between)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", BLOCKS)
def test_what_eager_does_not_keep_is_not_kept(name: str, backend: str) -> None:
    """A call keeps what it may need for a second derivative, and no other inputs."""
    x = torch.randn(4, 8, requires_grad=True)
    call = argand.compile(BLOCKS[name], backend=backend)
    alive_between(call, x * 2)  # compiles
    assert alive_between(call, x * 2)[1] <= alive_between(BLOCKS[name], x * 2)[1]


WEIGHT = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8


def large(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x @ WEIGHT).sin() + x.cos()
    return x


def test_kept_tensors_share_blocks_and_results_do_not() -> None:
    argand.reset()
    texts: list[str] = []
    stop = events.bus.subscribe(lambda e: texts.append(e.text()) if e.name == "output_code" else None)
    try:
        x = torch.randn(64, 64, requires_grad=True)
        out = argand.compile(large)(x)
    finally:
        stop()
    assert "new_block(" in texts[0]
    assert out.untyped_storage().nbytes() == 64 * 64 * 4
    out.sum().backward()
    want = torch.autograd.grad(large(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, want)
    assert x.grad.untyped_storage().nbytes() == 64 * 64 * 4


def test_hooks_see_tensors_of_their_own_memory() -> None:
    """A hook that writes a kept tensor's storage to a file writes that tensor, not a block."""
    argand.reset()
    x = torch.randn(64, 64, requires_grad=True)
    sizes = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append((tensor.nbytes, tensor.untyped_storage().nbytes()))
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(as_torchs(pack), lambda t: t):
        out = argand.compile(large)(x)
    out.sum().backward()
    assert sizes and all(own == held for own, held in sizes)
    torch.testing.assert_close(x.grad, torch.autograd.grad(large(x).sum(), x)[0])


def test_budget_between_equal_layers_keeps_some_of_them() -> None:
    """Of layers that are all alike a budget of one half computes some again, not all."""
    argand.reset()
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())])
    x = torch.randn(64, 32)

    def kept(budget: float) -> int:
        argand.reset()
        with argand.config.patch(activation_memory_budget=budget):
            return len(kept_sizes(argand.compile(net), x))

    assert 0 < kept(0.5) < kept(1.0)


def test_large_results_are_on_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that malloc may get anew in each call is filled in a fraction of the time; what is kept is, too."""
    argand.reset()
    monkeypatch.setattr(memory, "REUSED_BYTES", 0)  # as for more than is used again
    texts: list[str] = []
    stop = events.bus.subscribe(lambda e: texts.append(e.text()) if e.name == "output_code" else None)
    try:
        x = torch.randn(9 << 20)
        torch.testing.assert_close(argand.compile(lambda x: x + 1)(x), x + 1)
        argand.compile(lambda x: x + 1)(x[:100])
        kept = torch.randn(6 << 18, requires_grad=True)
        argand.compile(lambda x: torch.cumsum(x.sin(), 0).exp().sqrt().sum())(kept)
    finally:
        stop()
    assert "on_large_pages(" in texts[0] and "on_large_pages(" not in texts[1] and "on_large_pages(" in texts[2]


def test_blocks_hold_small_buffers_only() -> None:
    assert memory.BLOCK_BYTES < 32 << 20  # beyond that malloc maps each block anew
