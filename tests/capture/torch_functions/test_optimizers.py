"""torch.optim: a captured step leaves parameters and state as eager's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import CountingBackend

O = torch.optim
ONE_GRAPH: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (O.SGD, dict(lr=0.1)),
    "sgd_nesterov": (O.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "sgd_maximize": (O.SGD, dict(lr=0.1, momentum=0.9, dampening=0.1, maximize=True)),
    "adam": (O.Adam, dict(lr=0.01)),
    "adam_amsgrad": (O.Adam, dict(lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True)),
    "adamw": (O.AdamW, dict(lr=0.01)),
    "adagrad": (O.Adagrad, dict(lr=0.1, lr_decay=0.1)),
    "rmsprop": (O.RMSprop, dict(lr=0.01, momentum=0.9, centered=True)),
    "adadelta": (O.Adadelta, {}),
    "adamax": (O.Adamax, {}),
    "nadam": (O.NAdam, {}),
    "rprop": (O.Rprop, {}),
}
BREAKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "radam": (O.RAdam, {}),
    "asgd": (O.ASGD, {}),
    "adafactor": (O.Adafactor, {}),
    "lbfgs": (O.LBFGS, dict(max_iter=2)),
}


def run(cls: Any, options: dict[str, Any], wrap: Any, steps: int = 4) -> tuple[list[torch.Tensor], dict[str, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = cls(model.parameters(), **options)
    step = wrap(optimizer.step)
    given = torch.randn(steps, 2, 4)

    def loss(i: int) -> torch.Tensor:
        return model(given[i]).pow(2).sum()

    for i in range(steps):
        optimizer.zero_grad(set_to_none=bool(i % 2))
        loss(i).backward()
        if cls is O.LBFGS:
            step(lambda i=i: loss(i))
        else:
            step()
    return [p.detach() for p in model.parameters()], optimizer.state_dict()


def assert_as_eager(want: Any, got: Any) -> None:
    for a, b in zip(want[0], got[0]):
        torch.testing.assert_close(b, a)
    assert list(want[1]["state"]) == list(got[1]["state"])
    for index, state in want[1]["state"].items():
        assert list(state) == list(got[1]["state"][index])
        for name, value in state.items():
            torch.testing.assert_close(got[1]["state"][index][name], value)


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_step_in_one_graph(name: str, foreach: bool | None) -> None:
    cls, options = ONE_GRAPH[name]
    options = {**options, "foreach": foreach}
    backend = CountingBackend()
    argand.reset()
    got = run(cls, options, lambda step: argand.compile(step, backend=backend, fullgraph=True))
    assert_as_eager(run(cls, options, lambda step: step), got)
    assert 1 <= len(backend.graphs) <= 2  # the first step makes the state


@pytest.mark.parametrize("name", BREAKS)
def test_step_with_breaks(name: str) -> None:
    cls, options = BREAKS[name]
    argand.reset()
    got = run(cls, options, lambda step: argand.compile(step, backend="eager"))
    assert_as_eager(run(cls, options, lambda step: step), got)


def test_dict_with_tensor_keys_from_outside() -> None:
    keys = [torch.ones(2), torch.ones(3)]
    table = {keys[0]: 1.5, keys[1]: torch.tensor(2.0)}

    def f(keys, table):
        total = table[keys[0]] * table[keys[1]]
        for key, value in table.items():
            total = total + key.sum() * value
        table[keys[0]] = 4.0
        return total, keys[1] in table, torch.ones(2) in list(range(0))

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    want = f(keys, dict(table))
    got = compiled(keys, table)
    assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
    assert table[keys[0]] == 4.0 and len(table) == 2
    other = {keys[1]: torch.tensor(7.0), keys[0]: 1.0}  # another order, other values: not the same guards
    assert torch.equal(f(keys, dict(other))[0], compiled(keys, dict(other))[0])


@pytest.mark.parametrize("name", ["addcdiv", "addcdiv_", "addcmul", "addcmul_"])
def test_scale_that_is_a_tensor(name: str) -> None:
    def f(x, a, b, scale):
        return getattr(x + 0, name)(a, b, value=scale)

    given = (torch.randn(5), torch.randn(5), torch.rand(5) + 1, torch.tensor(0.3))
    got = argand.compile(f, backend="eager", fullgraph=True)(*given)
    torch.testing.assert_close(got, f(*given))


def test_clip_grad_norm_and_averaged_model() -> None:
    def make() -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        return model, O.SGD(model.parameters(), lr=0.1, momentum=0.9), average

    def update(model, optimizer, average):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        return norm

    results = []
    for fn in (update, argand.compile(update, backend="eager")):
        model, optimizer, average = make()
        norms = []
        for i in range(4):
            torch.manual_seed(i)
            model(torch.randn(2, 4)).pow(2).sum().backward()
            norms.append(fn(model, optimizer, average))
        results.append((norms, list(model.parameters()), list(average.parameters())))
    torch.testing.assert_close(results[1], results[0])


def test_learning_rate_schedule() -> None:
    def steps(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = O.Adam(model.parameters(), lr=0.1)
        schedule = O.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        step = wrap(optimizer.step)
        for i in range(10):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(i))).pow(2).sum().backward()
            step()
            schedule.step()
        return list(model.parameters())

    argand.reset()
    want, got = steps(lambda step: step), steps(lambda step: argand.compile(step, backend="eager"))
    torch.testing.assert_close(got, want)


def test_steps_are_captured_after_torch_marked_its_optimizers() -> None:
    """The first use of torch.compile marks parts of torch.optim as not for compilers: for torch's own."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert hasattr(O.Adam._init_group, "_torchdynamo_orig_callable")
    test_step_in_one_graph("adam", None)


@pytest.mark.parametrize("scales", [torch.tensor([2.0, 3.0]), [2.0, 3.0], 0.5])
def test_lists_of_results_have_eagers_type(scales: Any) -> None:
    def scaled(xs: list[torch.Tensor]) -> Any:
        return torch._foreach_addcmul(xs, xs, xs, scales)

    xs = [torch.ones(2), torch.ones(3)]
    assert type(argand.compile(scaled, backend="eager")(xs)) is type(scaled(xs))
