"""nn.Module: what captured code does to modules (hooks, conversions, members), and parametrized weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import argand
from helpers import CountingBackend, assert_same


class Converts(nn.Module):
    """`module.to(dtype)` in forward, as switch transformers' router does, sets `parameter.data` to the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)


class HooksInside(Converts):
    def forward(self, x):
        handle = self.layer.register_forward_hook(lambda module, args, out: out + 1)
        y = self.layer(x)
        handle.remove()
        return y + self.layer(x)


class AddsMembers(nn.Module):
    def forward(self, x):
        self.add_module("first", nn.ReLU())
        self.second = nn.Tanh()
        self.register_buffer("total", x.detach().sum(0))
        return self.second(self.first(x)) + self.total


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric())

    def forward(self, x):
        with parametrize.cached():
            return self.layer(x) + self.layer(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
    model[0].register_forward_hook(lambda module, args, out: out * 2, always_call=True)
    return model


class WritesItsDict(nn.Linear):
    """Its tables of hooks stay what they are."""

    def forward(self, x):
        vars(self)["calls"] = 1
        return super().forward(x)


def writing() -> nn.Module:
    model = WritesItsDict(4, 4)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return model


def pruned() -> nn.Module:
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 0.3)
    prune.random_structured(layer, "weight", 0.5, dim=0)
    return prune.custom_from_mask(layer, "bias", torch.tensor([1.0, 0.0, 1.0, 1.0]))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "conversion_that_changes_nothing": Converts,
    "hooks_made_and_removed_inside": HooksInside,
    "members_added": AddsMembers,
    "cached_parametrization": Cached,
    "hooks": hooked,
    "hook_of_what_writes_its_dict": writing,
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "weight_norm_by_a_hook": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "spectral_norm_by_a_hook": lambda: nn.utils.spectral_norm(nn.Linear(4, 4), n_power_iterations=2),
    "pruned": pruned,
    "attention_in_a_layer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_in_one_graph(name: str) -> None:
    torch.manual_seed(0)
    model = MODULES[name]()
    torch.manual_seed(0)
    other = MODULES[name]()  # modules that hold a tensor with a history have no deep copy
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    for i in range(3):
        x = torch.randn(2, 3, 4)[:, 0] if "attention" not in name else torch.randn(2, 3, 4)
        torch.manual_seed(i)
        want = other(x)
        torch.manual_seed(i)
        assert_same(want, compiled(x))
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("momentum", [None, 0.1])
def test_batch_norm_counts_batches(momentum: float | None) -> None:
    model = nn.BatchNorm1d(4, momentum=momentum)
    other = copy.deepcopy(model)
    compiled = argand.compile(model, backend="eager")
    for _ in range(3):
        x = torch.randn(5, 4)
        assert_same(other(x), compiled(x))
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


# ---- hooks that are called also after an error


class RaisesInTraining(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("in training")
        return x * 2


def handled(x: torch.Tensor, module: Any, log: list[Any]) -> Any:
    try:
        return module(x), list(log)
    except Exception as error:
        return x + len(log), type(error), str(error)


def with_own_hook(log: list[Any], **options: Any) -> torch.nn.Module:
    module = RaisesInTraining()
    module.register_forward_hook(lambda *given: log.append(given[-1] is None), always_call=True, **options)
    return module


@pytest.mark.parametrize("options", [{}, {"with_kwargs": True}, {"prepend": True}])
def test_hook_that_is_always_called_is_called_when_forward_raises(options: dict[str, Any]) -> None:
    """torch's call of a module leaves these hooks out while a compiler looks on."""
    logs: tuple[list[Any], list[Any]] = [], []
    eager, captured = (with_own_hook(log, **options) for log in logs)
    compiled = argand.compile(handled, backend="eager")
    for training in (True, True, False, True):
        eager.train(training), captured.train(training)
        wanted, found = handled(torch.ones(2), eager, logs[0]), compiled(torch.ones(2), captured, logs[1])
        assert repr(found) == repr(wanted)
        assert logs[0] == logs[1]


def test_global_hook_that_is_always_called() -> None:
    log: list[Any] = []
    module = RaisesInTraining()
    compiled = argand.compile(handled, backend="eager")
    compiled(torch.ones(2), module, log)
    removed = torch.nn.modules.module.register_module_forward_hook(lambda *given: log.append(1), always_call=True)
    try:
        assert compiled(torch.ones(2), module, log)[1:] == (ValueError, "in training")
    finally:
        removed.remove()
    assert log == [1]


def test_usual_hooks_leave_one_graph() -> None:
    """The handler for hooks that are always called is none where there are none: what may raise stays in the graph."""
    module = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 2))
    module[0].register_forward_hook(lambda *given: given[-1] * 2)
    compiled = argand.compile(module, backend="eager", fullgraph=True)
    at = torch.tensor([1, 3])
    assert torch.equal(compiled(at), module(at))


@pytest.mark.parametrize("hooks", [[4], [], (1,), None, "a", {1: None}], ids=repr)
def test_hooks_that_are_no_hooks(hooks: Any) -> None:
    class Without(torch.nn.Module):
        """Has no forward, so that calling it raises."""

    outcomes = []
    for wrap in (lambda fn: fn, lambda fn: argand.compile(fn, backend="eager")):
        module = torch.nn.Sequential(Without(), torch.nn.Tanh())
        fn = wrap(handled)
        seen = [repr(fn(torch.ones(2), module, []))]
        module.__dict__["_forward_hooks"] = hooks
        seen += [repr(fn(torch.ones(2), module, [])) for _ in range(2)]
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def scored() -> nn.Module:
    """Hooks on the module that is compiled itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
    model.register_forward_hook(lambda module, args, out: out * 2 + args[0])
    return model


def test_hooks_of_the_compiled_module_are_part_of_its_graph() -> None:
    backend, x, model = CountingBackend(), torch.randn(2, 4), scored()
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(x), scored()(x))
    assert len(backend.graphs) == 1
    model.register_forward_hook(lambda module, args, out: out + 5)
    assert torch.equal(compiled(x), scored()(x) + 5)


def test_hooks_of_its_backward_are_called_by_the_engine() -> None:
    logs: list[list[Any]] = [[], []]
    for log, wrap in zip(logs, (lambda module: module, lambda module: argand.compile(module, fullgraph=True))):
        model = scored()
        model.register_full_backward_hook(lambda module, gi, go, log=log: log.append([g.shape for g in (*gi, *go)]))
        x = torch.ones(2, 4, requires_grad=True)
        wrap(model)(x).sum().backward()
        log.append(x.grad.tolist())
    assert logs[0] == logs[1] and len(logs[0]) == 2
