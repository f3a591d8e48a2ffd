"""Gradients that leave a compiled backward before its end, against eager's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand import events
from argand.backends.in_parts.cuts import _arrivals, cut_places
from argand.backends.native import native
from distributed.models import CNN, ONE_BLOCK, batch


class Several(nn.Module):
    """Two results, a tied weight, a bias that is added twice, and layers that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.layers[3].weight = self.layers[0].weight
        self.shift = nn.Parameter(torch.zeros(12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers[0](x).tanh()
        z = self.layers[1](y) + self.shift
        return self.layers[3](self.layers[2](z.relu())) + self.shift, z


class Mixed(nn.Module):
    """Layers under autocast, one of them with a number that is the size of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers[:3]:
                x = layer(x)
            with torch.autocast("cpu", enabled=False):
                x = self.layers[3](x.float() * x.shape[0])
            return self.layers[4](x).float()


class Chain(nn.Sequential):
    """Layers that follow each other."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(12, 12) for _ in range(5)))


MODELS: tuple[Callable[[], nn.Module], ...] = (ONE_BLOCK, CNN, Several)


def early(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    """The model, compiled so that gradients leave its backward in several groups."""

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        cuts = cut_places(gm, inputs, iter(lambda: 600, None), anywhere=True)
        gm.meta["arrivals"] = _arrivals(gm, cuts)
        run = native(gm, inputs)
        assert len(cuts) > 1 and "arrivals" not in gm.meta
        return run

    return argand.compile(model, backend=backend)


def loss_of(results: Any) -> torch.Tensor:
    results = results if isinstance(results, tuple) else (results,)
    return sum((one.square().mean() for one in results), torch.zeros(()))


def both(
    make: Callable[[], nn.Module],
    act: Callable[[nn.Module, Callable[..., Any]], list[torch.Tensor]],
    rtol: float = 1e-4,
) -> None:
    """What `act` gives of the model and of the compiled model."""
    outcomes = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = make()
        outcomes.append(act(model, early(model) if compiled else model))
    assert len(outcomes[0]) == len(outcomes[1]) > 0
    for want, have in zip(*outcomes):
        torch.testing.assert_close(have, want, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("make", MODELS)
def test_gradients_in_groups(make: Callable[[], nn.Module]) -> None:
    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        for step in range(3):  # the last two are added
            model.zero_grad() if step < 2 else None
            loss_of(call(batch(model, 0, step))).backward()
        return [p.grad for p in model.parameters()]

    both(make, act)


@pytest.mark.parametrize("make", [Chain, Several, Mixed])
def test_sizes_that_vary(make: Callable[[], nn.Module]) -> None:
    orders: list[list[int]] = []

    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        order: list[int] = []
        for number, p in enumerate(model.parameters()):
            p.register_post_accumulate_grad_hook(lambda p, number=number: order.append(number))
        for size in (3, 5, 4, 7):  # gradients are added
            loss_of(call(torch.randn(size, 12))).backward()
        orders.append(order[-len(list(model.parameters())) :])
        return [p.grad for p in model.parameters()]

    both(make, act, rtol=0.05 if make is Mixed else 1e-4)
    assert [number // 2 for number in orders[0]] == [number // 2 for number in orders[1]] or make is Several


def test_ways_to_differentiate() -> None:
    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        parameters = list(model.parameters())
        loss = loss_of(call(batch(model, 0, 0)))
        gradients = [*torch.autograd.grad(loss, parameters[-2:], retain_graph=True)]
        gradients += torch.autograd.grad(loss, parameters[:1], retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        z = call(batch(model, 0, 1))[1]  # one result alone
        gradients += torch.autograd.grad(z.sum(), parameters[:2])
        twice = torch.autograd.grad(loss_of(call(batch(model, 0, 2))), parameters, create_graph=True)
        gradients += torch.autograd.grad(sum(one.square().sum() for one in twice), parameters)
        return [*gradients, *twice, *(p.grad for p in parameters)]

    both(Several, act)


def test_hooks_see_and_change_gradients_as_they_arrive() -> None:
    seen: list[list[int]] = []

    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        order: list[int] = []

        def thrice(number: int, p: torch.Tensor) -> None:
            order.append(number)
            p.grad.mul_(3)

        for number, p in enumerate(model.parameters()):
            p.register_hook(lambda grad: grad * 2)
            p.register_post_accumulate_grad_hook(partial(thrice, number))
        loss_of(call(batch(model, 0, 0))).backward()
        seen.append(order)
        return [p.grad for p in model.parameters()]

    both(ONE_BLOCK, act)
    count = len(seen[0])
    assert sorted(seen[1]) == sorted(seen[0]) == list(range(count))
    assert sum(seen[1].index(n) for n in range(count // 2)) > sum(seen[1].index(n) for n in range(count // 2, count))


def test_compiled_autograd_leaves_them_to_the_engine() -> None:
    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        for step in range(3):  # the last ones would run what the first recorded
            loss = loss_of(call(batch(model, 0, step)))
            with argand.compiled_autograd():
                loss.backward()
        with argand.compiled_autograd():
            loss_of(call(batch(model, 0, 3))).backward()
        return [p.grad for p in model.parameters()]

    both(Several, act)


def test_an_error_in_between() -> None:
    model = ONE_BLOCK()
    call = early(model)
    call(batch(model, 0, 0)).sum().backward()
    last = list(model.parameters())[-2]

    def refuse(p: torch.Tensor) -> None:
        raise ValueError("no more")

    hook = last.register_post_accumulate_grad_hook(refuse)
    with pytest.raises(ValueError, match="no more"):
        call(batch(model, 0, 0)).sum().backward()
    hook.remove()
    model.zero_grad()
    call(batch(model, 0, 0)).sum().backward()
    have = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(batch(model, 0, 0)).sum().backward()
    for gradient, p in zip(have, model.parameters()):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-4, atol=1e-4)


def test_parameters_are_updated_as_their_gradients_arrive() -> None:
    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        def update(p: torch.Tensor) -> None:
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for step in range(3):
            loss_of(call(batch(model, 0, step))).backward()
        return list(model.parameters())

    both(Chain, act)


def test_a_write_to_what_is_still_read_is_refused() -> None:
    def act(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        *_, last = model.parameters()

        def write(p: torch.Tensor) -> None:
            with torch.no_grad():
                model[0].weight.mul_(2)

        hook = last.register_post_accumulate_grad_hook(write)
        loss = loss_of(call(batch(model, 0, 0).requires_grad_()))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        hook.remove()
        model.zero_grad()
        loss_of(call(batch(model, 0, 0))).backward()
        return [p.grad for p in model.parameters()]

    both(Chain, act)


def test_autograd_takes_gradients_as_they_are() -> None:
    """A gradient that somebody else still has would be copied."""
    model = ONE_BLOCK()
    call = early(model)
    call(batch(model, 0, 0)).sum().backward()
    model.zero_grad()
    loss = call(batch(model, 0, 0)).sum()
    with torch.profiler.profile(record_shapes=True) as profile:
        loss.backward()
    shapes = {tuple(p.shape) for p in model.parameters()}
    copied = [
        event for event in profile.events() if event.name == "aten::clone" and tuple(event.input_shapes[0]) in shapes
    ]
    assert not copied


class Reading(nn.Module):
    """Layers that read what earlier ones made, a sum that the backward computes once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.reading = (nn.ModuleList(nn.Linear(12, 12) for _ in range(3)) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.flip(1)
        for layer, norm in zip(self.first, self.norms):
            x = x + layer(norm(x)).relu()
        for layer, reading in zip(self.last, self.reading):
            y = y + layer(y).relu() * reading(x)
        return y


def test_groups_do_not_wait_for_later_ones() -> None:
    texts: list[str] = []
    stop = events.bus.subscribe(lambda event: texts.append(event.text()), ("output_code",))
    model = Reading()
    early(model)(batch(model, 0, 0)).sum().backward()
    stop()
    steps = re.findall(r"^    (yield early|\w+_out\(|cpp_fused)", texts[-1].partition("def call(")[2], re.MULTILINE)
    stops = [place for place, step in enumerate(steps) if step == "yield early"]
    assert len(stops) > 5 and all(after - before > 1 for before, after in zip(stops, stops[1:]))
    assert stops[0] < len(steps) / 5
