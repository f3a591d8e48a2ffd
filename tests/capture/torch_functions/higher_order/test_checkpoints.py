"""Checkpoints whose backward is captured with them: eager calls their function again, with what it finds by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import argand
from helpers import assert_same, texts_of

BACKENDS = ["eager", "aot_eager", "native"]
Make = Callable[[], tuple[nn.Module, Callable[[torch.Tensor], Any]]]


class Net(nn.Module):
    """What checkpoints read is changed between forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.w = nn.Linear(6, 6), nn.Dropout(0.4), nn.Parameter(torch.ones(6))
        self.register_buffer("offset", torch.zeros(6))
        self.factor, self.row = 2.0, [3.0]

    def inner(self, h: torch.Tensor) -> torch.Tensor:
        return (self.drop(self.a(h)) * self.w * self.factor * self.row[-1] + self.offset).tanh()


def attribute(net: Net) -> None:
    net.factor += 1


def attribute_put_back(net: Net) -> None:
    net.factor += 1
    net.factor -= 1


def item(net: Net) -> None:
    net.row.append(net.row[-1] + 1)


def mode(net: Net) -> None:
    net.train(not net.training)


def data(net: Net) -> None:
    net.w.data.mul_(2)


def parameter(net: Net) -> None:
    with torch.no_grad():
        net.w.mul_(2)


def buffer(net: Net) -> None:
    net.offset.add_(1)


def another_tensor(net: Net) -> None:
    net.offset = net.offset + 1


def nothing(net: Net) -> None:
    pass


def outcome(change: Callable[[Net], None], backend: str | None, how: str) -> list[Any]:
    torch.manual_seed(0)
    net = Net()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(net.inner, net.a(x), use_reentrant=False).square().mean()
        z = checkpoint(lambda h: checkpoint(net.inner, h, use_reentrant=False).exp(), x, use_reentrant=False).mean()
        if how == "grad":
            change(net)
            grads = torch.autograd.grad(y + z, [net.a.weight, net.w])
            return torch.cat([one.flatten() for one in grads])
        if how == "break":
            change(net)
            argand.graph_break()
        if how == "two":
            y.backward()
            change(net)
            z.backward()
        else:
            if how == "backward":
                change(net)
            (y + z).backward()
        return y.detach()

    run = argand.compile(step, backend=backend) if backend else step
    seen: list[Any] = []
    for r in range(3):
        torch.manual_seed(r)
        try:
            seen.append(run(torch.randn(4, 6)))
        except CheckpointError:
            seen.append("refused")
        seen += [None if one.grad is None else one.grad.clone() for one in net.parameters()]
    return seen


CHANGES = [attribute, attribute_put_back, item, mode, data, parameter, buffer, another_tensor, nothing]


@pytest.mark.parametrize("how", ["backward", "grad", "two", "break"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_read_is_that_of_the_backward(change: Callable[[Net], None], how: str) -> None:
    with argand.config.patch(fallback_random=True):
        want = outcome(change, None, how)
        for backend in BACKENDS:
            with texts_of("graph_breaks") as breaks:
                assert_same(want, outcome(change, backend, how))
            if change in (nothing, attribute_put_back) and how != "break":
                assert not breaks
            argand.reset()


def test_autocast_is_that_of_the_forward() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = checkpoint(lambda h: net(h) * 2 if net(h).dtype is torch.bfloat16 else net(h), x, use_reentrant=False)
        y.sum().backward()

    x, grads = torch.randn(4, 6), []
    for run in (step, argand.compile(step, backend="eager", fullgraph=True)):
        net.zero_grad()
        run(x)
        grads.append([one.grad for one in net.parameters()])
    assert_same(*grads)


@pytest.mark.parametrize("kind", ["no_grad", "hook", "asks", "plain"])
def test_a_reentrant_checkpoint_is_computed_again_with_gradients(kind: str) -> None:
    """Its forward runs without, where blocks without gradients and hooks of modules are nothing."""

    def outcome(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net, calls = nn.Linear(6, 6), []
        if kind == "hook":
            net.register_full_backward_hook(lambda module, given, result: calls.append("called"))

        def inner(h: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(kind != "no_grad" and torch.is_grad_enabled()):
                scale = net.weight.sum().exp()
            if kind == "asks" and torch.is_grad_enabled():
                scale = scale * 2
            return net(h).tanh() * scale

        def step(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, net(x), use_reentrant=True).square().mean()

        run = argand.compile(step, backend="eager") if compiled else step
        for r in range(2):
            torch.manual_seed(r)
            run(torch.randn(4, 6)).backward()
        return [net.weight.grad, net.bias.grad, calls]

    assert_same(outcome(False), outcome(True))
