"""Whole training steps are eager's, however much of them is compiled."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

import optimizer_steps
import training_steps

import argand
import sweeps
from argand.engine.entries import Trial
from helpers import assert_same, texts_of

BACKENDS = ["eager", "aot_eager", "native"]


@pytest.mark.parametrize("way", training_steps.WAYS)
def test_random_steps(way: str) -> None:
    """The command of `training_steps.py` tries more."""
    found: Counter[str] = Counter()
    for seed in range(200, 200 + sweeps.part(24, 5)):
        spec = training_steps.drawn(seed)
        told = training_steps.difference(spec, way, "eager", found)
        assert not told, f"seed {seed}\n{training_steps.text_of(spec)}\n{told}"
    assert found["programs"]


def test_random_optimizers() -> None:
    """The command of `optimizer_steps.py` tries more."""
    found: Counter[str] = Counter()
    for seed in range(sweeps.part(60, 10)):
        spec = optimizer_steps.drawn(seed)
        told = optimizer_steps.difference(spec, "eager", found)
        assert not told, f"{spec}\n{told}"
    assert found["steps"]


Step = Callable[[torch.Tensor], Any]


def trained(make: Callable[[], tuple[nn.Module, Step]], compiled: bool, backend: str) -> Any:
    torch.manual_seed(0)
    model, step = make()
    run = argand.compile(step, backend=backend) if compiled else step
    results = [run(torch.randn(4, 6)) for _ in range(2)]
    return results, [parameter.grad for parameter in model.parameters()]


def same_training(make: Callable[[], tuple[nn.Module, Step]], backend: str) -> None:
    assert_same(trained(make, False, backend), trained(make, True, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True])
def test_a_reentrant_checkpoint_accumulates_gradients_by_itself(backend: str, again: bool) -> None:
    def make() -> tuple[nn.Module, Step]:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))

        def step(x: torch.Tensor) -> None:
            h = checkpoint(lambda h: model[1](h).tanh(), model[0](x), use_reentrant=True)
            h = checkpoint(lambda h: model[1](h).tanh(), h, use_reentrant=True) if again else h
            h.square().mean().backward()

        return model, step

    same_training(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", ["x", "y", "head"])
@pytest.mark.parametrize("way", ["grad", "inputs"])
def test_gradients_of_some_inputs_do_not_come_through_a_reentrant_checkpoint(
    backend: str, wanted: str, way: str
) -> None:
    """Eager refuses those of tensors before it (`x`), and knows nothing of it for those beside and behind it."""
    head = torch.randn(6, 6, requires_grad=True)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = checkpoint(torch.sin, x * 2 + y.detach(), use_reentrant=True)
        return (h @ head + y).sum()

    def outcome(run: Any) -> Any:
        tensors = {"x": torch.ones(4, 6, requires_grad=True), "y": torch.ones(6, requires_grad=True), "head": head}
        told = run(tensors["x"], tensors["y"])
        try:
            if way == "grad":
                return torch.autograd.grad(told, [tensors[wanted]])
            told.backward(inputs=[tensors[wanted]])
            return tensors[wanted].grad.clone()
        except RuntimeError as error:
            return str(error)
        finally:
            head.grad = None

    want = outcome(loss)
    assert isinstance(want, str) == (wanted == "x")
    compiled = argand.compile(loss, backend=backend)
    for _ in range(2):
        assert_same(want, outcome(compiled))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_a_backward_does_not_reach(backend: str) -> None:
    def make() -> tuple[nn.Module, Step]:
        model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

        def step(x: torch.Tensor) -> None:
            model[0](x).square().mean().backward(inputs=[model[1].weight])

        return model, step

    same_training(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_are_reached_behind_a_graph_break(backend: str) -> None:
    """What is differentiated in one graph leads through another, to them too."""

    def make() -> tuple[nn.Module, Step]:
        model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

        def step(x: torch.Tensor) -> None:
            h = model[1](model[0](x))
            argand.graph_break()
            model[1](h).square().mean().backward(inputs=[model[0].weight, model[1].weight])

        return model, step

    same_training(make, backend)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_all_modules_do_not_see_graphs(backend: str) -> None:
    def make() -> tuple[nn.Module, Step]:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))

        def step(x: torch.Tensor) -> list[str]:
            h = Doubled.apply(model(x))
            h.register_hook(lambda grad: grad * 2)
            checkpoint(lambda h: h.sin().exp(), h, use_reentrant=False).sum().backward()
            return seen

        return model, step

    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, made: seen.append(type(module).__name__)
    )
    try:
        want = trained(make, False, backend), list(seen)
        seen.clear()
        assert_same(want, (trained(make, True, backend), list(seen)))
    finally:
        handle.remove()


@pytest.mark.parametrize("late", [False, True])
def test_hooks_that_write_to_parameters_within_a_backward(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """What is behind in the backward has read them; what is yet to come must not, where eager raises."""
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)

    def outcome(around: Any) -> Any:
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(lambda p: torch.optim.SGD([p], 0.1).step())
        results: list[Any] = []
        for _ in range(4):
            with around():
                h = Doubled.apply(model[0](torch.randn(4, 6)))
                h = Doubled.apply(model[1](h)) if not late else Doubled.apply(h.mul(2) @ model[1].weight.detach()) + h
                h = h * model[1].weight.detach()[0] if late else h
                h = model[1](Doubled.apply(h)) if late else h
                try:
                    h.square().mean().backward()
                except RuntimeError as error:
                    results.append(str(error)[:40])
            results += [parameter.detach().clone() for parameter in model.parameters()]
        return results

    want = outcome(contextlib.nullcontext)
    assert_same(want, outcome(lambda: argand.compiled_autograd(backend="eager")), exact=True)
    assert late == any(isinstance(one, str) for one in want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_asked_for_where_a_number_varies(backend: str) -> None:
    def make() -> tuple[nn.Module, Any]:
        model = nn.Linear(6, 6)
        numbers = iter([1, 2, 3, 4])

        def of(x: torch.Tensor, r: int) -> Any:
            (grad,) = torch.autograd.grad((model(x) * r).square().mean(), [model.weight], create_graph=True)
            (grad.square().sum() + r).backward()
            return grad.detach()

        run = argand.compile(of, backend=backend) if compiled else of
        return model, lambda x: run(x, next(numbers))

    outcomes = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, step = make()
        results = [step(torch.randn(4, 6)) for _ in range(4)]
        outcomes.append((results, model.weight.grad))
    assert_same(*outcomes)


class OfTwoDtypes(nn.Module):
    """Complex parameters beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.turn = nn.Linear(6, 5), nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).tanh()
        return h * (self.turn * self.turn.conj()).real + (h * self.turn).abs()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "NAdam", "RAdam", "ASGD", "Rprop", "Adamax"])
def test_complex_parameters_beside_real_ones_are_clipped_and_updated_in_one_graph(name: str, foreach: bool) -> None:
    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = OfTwoDtypes()
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01, foreach=foreach)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=foreach)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach() + norm

        run = argand.compile(step, backend="eager", fullgraph=True) if compiled else step
        seen = []
        for r in range(4):
            torch.manual_seed(r)
            seen.append(run(torch.randn(4, 6)).clone())
        return [*seen, *[p.detach() for p in net.parameters()]]

    torch.testing.assert_close(trained(True), trained(False))


SCHEDULES: dict[str, Any] = {
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "halved each cycle": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="triangular2"),
    "of a range": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=30),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_within_the_step_are_numbers_that_vary(schedule: str) -> None:
    def trained(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        scheduler = SCHEDULES[schedule](optimizer)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            return loss.detach()

        run = argand.compile(step, backend="eager", fullgraph=True) if compiled else step
        seen: list[Any] = []
        for r in range(12):
            torch.manual_seed(r)
            seen += [run(torch.randn(4, 6)).clone(), optimizer.param_groups[0]["lr"]]
        return [*seen, optimizer.param_groups[0]["momentum"], *[p.detach() for p in net.parameters()]]

    with texts_of("recompiles") as compiled_anew:
        assert_same(trained(False), trained(True), exact=True)
    assert len(compiled_anew) <= 2  # the first step; up or down


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_devices_by_name_are_part_of_a_step(backend: str) -> None:
    """Nothing is made, or drawn, while it is captured."""

    def outcome(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 6)

        def step(x: torch.Tensor) -> torch.Tensor:
            h = model(x).to("cpu") + torch.randn(6, device="cpu") * torch.ones(6).to(device="cpu")
            loss = h.square().mean()
            loss.backward()
            return loss.detach()

        run = argand.compile(step, backend=backend, fullgraph=True) if compiled else step
        torch.manual_seed(1)
        seen = [run(torch.ones(4, 6)), torch.rand(3)]
        return [*seen, model.weight.grad]

    with argand.config.patch(fallback_random=True):
        torch.testing.assert_close(outcome(True), outcome(False))
