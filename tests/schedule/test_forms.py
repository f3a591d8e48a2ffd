"""Groups of one form: what they take from each other is what they would have come to by themselves."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from loop_programs import Builder, assert_same_program, each_for_itself, layer_norm, scheduled
from torch import nn
from torch.nn import functional

import argand
import sweeps
from argand.backends.programs import generation
from argand.ir.target import on_cpu
from argand.schedule.fusion.emit import Emitter
from argand.schedule.fusion.group import Merger

TARGETS = on_cpu(2)


def calls_of(owner: type, name: str) -> mock._patch[mock.MagicMock]:
    return mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))


def layers(*widths: int) -> tuple[Builder, list[Any]]:
    """Layers of a product with itself, a norm and an activation."""
    b = Builder()
    outputs = []
    for size in widths:
        x = b.extern(torch.ops.aten.relu.default, b.input(32, size), size=(32, size))
        x = layer_norm(b, b.pointwise(lambda o, a: o.mul(a, a), x), b.input(size), b.input(size))
        outputs.append(b.pointwise(lambda o, a: o.add(o.tanh(a), o.constant(1.5, torch.float32)), x))
    return b, outputs


def test_kernels_of_like_layers_are_worked_out_once():
    merged, emitted = [], []
    for count in (3, 9):
        b, outputs = layers(*[64] * count)
        with calls_of(Merger, "merge") as merge, calls_of(Emitter, "emit") as emit:
            generation.schedule(b.program(*outputs), targets=TARGETS)
        merged.append(merge.call_count)
        emitted.append(emit.call_count)
    assert merged[0] == merged[1] and emitted[0] == emitted[1]


def test_layers_of_other_sizes_are_worked_out_by_themselves():
    b, outputs = layers(64, 64, 48, 64, 2, 48)
    assert len(scheduled(b, *outputs, targets=TARGETS).kernels()) == 3


@pytest.mark.parametrize(
    "numbers", [(0.0, -0.0), (1.0, 2.0), (1, True), (float("nan"), float("inf"))], ids=lambda pair: str(pair)
)
def test_numbers_are_told_apart(numbers):
    b = Builder()
    outputs = []
    for number in (*numbers, *numbers):
        dtype = {bool: torch.bool, int: torch.int64}.get(type(number), torch.float32)
        x = b.extern(torch.ops.aten.relu.default, b.input(40, 50), size=(40, 50))
        y = b.pointwise(lambda o, a, n=number, d=dtype: o.mul(a, o.to_dtype(o.constant(n, d), torch.float32)), x)
        outputs.append(b.reduce("sum", y, [1]))
    assert len(scheduled(b, *outputs, targets=TARGETS).kernels()) == 2


def test_who_needs_a_buffer_is_told_apart():
    b = Builder()
    outputs = []
    for kept in (True, False, True, False):
        x = b.extern(torch.ops.aten.relu.default, b.input(40, 50), size=(40, 50))
        y = b.pointwise(lambda o, a: o.exp(a), x)
        outputs += [b.pointwise(lambda o, a: o.tanh(a), y), *([y] if kept else [])]
    written = [len(step.outputs) for step in scheduled(b, *outputs, targets=TARGETS).kernels()]
    assert written == [2, 1]


def test_whether_two_groups_share_a_buffer_is_told_apart():
    b = Builder()
    outputs = []
    for same in (True, False, True, False):
        x, y = b.input(256, 512), b.input(256, 512)
        one = b.reduce("sum", x, [1])
        outputs += [one, b.reduce("max", x if same else y, [1])]
    made = scheduled(b, *outputs, targets=TARGETS)
    assert [len(step.outputs) for step in made.steps] == [2, 1, 1, 2, 1, 1]


def test_statements_of_one_origin_here_and_of_two_there():
    b = Builder()
    outputs = []
    for number in range(4):
        x = b.extern(torch.ops.aten.relu.default, b.input(40, 50), size=(40, 50))
        y = b.pointwise(lambda o, a: o.exp(a), x)
        z = b.pointwise(lambda o, a: o.tanh(a), y)
        if number % 2:
            first, second = b.nodes[-2:]
            for statement in second.body.statements:
                object.__setattr__(statement, "origin", first.body.statements[0].origin)
        outputs.append(z)
    scheduled(b, *outputs, targets=TARGETS)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.up, self.down = (nn.Linear(*s) for s in ((32, 96), (32, 32), (32, 64), (64, 32)))
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = functional.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.norm(self.one(x)))
        return x + self.two(y * functional.adaptive_avg_pool2d(y, 1).sigmoid())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(32, 48), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i, f, o = self.gate(x).chunk(3, -1)
        state = torch.cat([i, o], -1)[..., :32] * self.value(x).tanh()
        return torch.where(x > 0, state, x.roll(1, -1)) + torch.cat([f, f.flip(-1)], -1).cumsum(-1)


LAYERS = {Encoder: (2, 16, 32), Residual: (2, 8, 16, 16), Gated: (4, 32)}


@pytest.mark.parametrize(("layer", "dynamic"), sweeps.chessboard(LAYERS, [False, True]))
def test_models(layer, dynamic, monkeypatch):
    """Forward and backward of four layers are the same program as where every group is worked out."""
    kinds = []
    shared = generation.schedule

    def both(program, **settings):
        with each_for_itself():
            alone = shared(program, **settings)
        made = shared(program, **settings)
        assert_same_program(made, alone)
        return made

    def eager_kernels(program, schedule, graph, keep):
        kinds.append(program.kind)
        return generation.eager_kernels(program)

    monkeypatch.setattr(generation, "schedule", both)
    monkeypatch.setattr(generation, "_load_later", eager_kernels)  # no compiler is needed to compare
    torch.manual_seed(0)
    model = nn.Sequential(*[layer() for _ in range(4)])
    x = torch.randn(LAYERS[layer])
    argand.compile(model, dynamic=dynamic)(x).pow(2).mean().backward()
    assert kinds == ["forward", "backward"]
