"""Layers that change something besides their results are never repeated without what they change."""

from __future__ import annotations

import collections
import contextvars
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
import sweeps
from helpers import assert_same

Effect = Callable[[Any, torch.Tensor], torch.Tensor]
VARIABLE = contextvars.ContextVar("VARIABLE", default=0.0)


class Shared:
    """What all layers have in common."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.table: dict[str, int] = {}
        self.ids: set[int] = set()
        self.recent: collections.deque[int] = collections.deque(maxlen=3)
        self.numbers = itertools.count()
        self.total = 0
        self.memory, self.counts = torch.zeros(8), torch.zeros(1)


class Base(nn.Module):
    def __init__(self, number: int, shared: Shared) -> None:
        super().__init__()
        self.number, self.shared = number, shared
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.own, self.table, self.calls = [1], {"calls": 0}, 0
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros(4))
        self.register_buffer("part", shared.memory[number % 3 :][:4])


def own_list(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.own.append(len(layer.own))
    return x + len(layer.own)


def own_dict(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.table["calls"] += 1
    return x + layer.table["calls"]


def own_attribute(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.calls += 1
    return x


def list_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.items.append(layer.number)
    return x + len(layer.shared.items)


def tensors_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.items.append(x * 2)
    return x


def dict_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.table["calls"] = layer.shared.table.get("calls", 0) + 1
    return x * layer.shared.table["calls"]


def set_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.ids.add(len(layer.shared.ids))
    return x + len(layer.shared.ids)


def deque_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.recent.append(layer.number)
    return x + len(layer.shared.recent)


def attribute_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.total += 1
    return x + layer.shared.total


def iterator_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x + next(layer.shared.numbers)


def inner_module(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.inner.train(not layer.inner.training)
    return x + float(layer.inner.training)


def buffer(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.steps.add_(1)
    return x + layer.steps


def statistics(layer: Any, x: torch.Tensor) -> torch.Tensor:
    normed: torch.Tensor = layer.norm(x)
    return normed


def in_place(layer: Any, x: torch.Tensor) -> torch.Tensor:
    x.add_(layer.steps)
    return x.mul_(2)


def view_of_a_buffer(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.steps[1:3].add_(x[0, :2])
    return x + layer.steps


def memory_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.part.add_(1)
    return x + layer.part


def memory_of_all_is_asked(layer: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + 1 if layer.part[0] > 2 else x - 1
    layer.part.add_(1)
    return x


def tensor_of_all(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.shared.counts.add_(1)
    return x * layer.shared.counts[0]


def tensor_of_all_is_asked(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.steps.add_(1)
    layer.shared.counts.add_(1)
    return x + 1 if layer.shared.counts[0] > 3 else x - 1


def parameter_moves(layer: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        layer.inner[0].weight.mul_(0.5)
    return x


def variable(layer: Any, x: torch.Tensor) -> torch.Tensor:
    VARIABLE.set(VARIABLE.get() + 1.0)
    return x + VARIABLE.get()


def number_drawn(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x + random.random()


EFFECTS = (
    own_list, own_dict, own_attribute, list_of_all, tensors_of_all, dict_of_all, set_of_all, deque_of_all,
    attribute_of_all, iterator_of_all, inner_module, buffer, statistics, in_place, view_of_a_buffer, memory_of_all,
    memory_of_all_is_asked, tensor_of_all, tensor_of_all_is_asked, parameter_moves, variable, number_drawn,
)  # fmt: skip


def outcome(effect: Effect, first: bool, twice: bool, compiled: bool, dynamic: bool | None = None) -> list[Any]:
    """What two calls of a net of six layers leave behind."""

    class Layer(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(effect(self, x)) if first else effect(self, self.inner(x) + x)

    torch.manual_seed(0)
    random.seed(0)
    shared = Shared()
    layers = nn.ModuleList(Layer(number, shared) for number in range(6))
    if twice:
        layers[4] = layers[1]

    def net(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    call = argand.compile(net, backend="eager", dynamic=dynamic) if compiled else net
    context = contextvars.copy_context()
    results = []
    for _ in range(2):
        y = context.run(call, torch.ones(2, 4))
        own = [
            (
                layer.own[:],
                dict(layer.table),
                layer.calls,
                layer.inner.training,
                *map(torch.clone, (*layer.buffers(), *layer.parameters())),
            )
            for layer in layers
        ]
        kept = [item if isinstance(item, int) else item.detach() for item in shared.items]
        held = dict(shared.table), len(shared.ids), list(shared.recent), shared.total, shared.counts.clone()
        results.append((y.detach(), own, kept, held, context.get(VARIABLE), random.random()))
    return [results, next(shared.numbers)]


@pytest.mark.parametrize(
    ("twice", "first", "dynamic", "effect"),
    sweeps.combinations([False, True], [False, True], [None, True], EFFECTS),
)
def test_what_layers_change_is_as_in_eager(effect: Effect, dynamic: bool | None, first: bool, twice: bool) -> None:
    assert_same(outcome(effect, first, twice, False), outcome(effect, first, twice, True, dynamic))
