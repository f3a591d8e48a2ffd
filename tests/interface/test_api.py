"""The front door: what `argand.compile` takes and gives back."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.capture.driver.explain import Findings
from argand.errors import ConfigError
from helpers import CountingBackend, assert_same

X = torch.randn(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


def test_decorators() -> None:
    @argand.compile
    def plain(x):
        return x + 1

    @argand.compile(backend="eager", fullgraph=True)
    def configured(x):
        return x + 1

    assert_same(X + 1, plain(X))
    assert_same(X + 1, configured(X))


def test_methods() -> None:
    class Scale:
        def __init__(self, by) -> None:
            self.by = by

        @argand.compile(backend="eager")
        def on_class(self, x):
            return x * self.by

        def plain(self, x):
            return x * self.by

    scale = Scale(3)
    assert_same(X * 3, scale.on_class(X))
    assert_same(X * 3, argand.compile(scale.plain, backend="eager")(X))


def test_module_wrapper() -> None:
    model = Net()
    compiled = argand.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert_same(model(X), compiled(X))
    assert [n for n, _ in compiled.named_parameters()]
    assert compiled.fc is model.fc
    compiled.eval()
    assert not model.training
    compiled.extra = 5
    assert model.extra == 5
    assert_same(model(X), copy.deepcopy(compiled)(X))
    assert_same(model(X), pickle.loads(pickle.dumps(compiled))(X))


def test_same_settings_share_compiled_code() -> None:
    backend = CountingBackend()

    def f(x):
        return x * 2

    argand.compile(f, backend=backend)(X)
    argand.compile(f, backend=backend)(X)
    assert len(backend.graphs) == 1
    argand.reset()
    argand.compile(f, backend=backend)(X)
    assert len(backend.graphs) == 2


@pytest.mark.parametrize(
    "kwargs",
    [{"backend": "no such"}, {"mode": "fast"}, {"fullgraph": 1}, {"dynamic": "yes"}, {"options": [1]}],
)
def test_wrong_arguments(kwargs) -> None:
    with pytest.raises(ConfigError):
        argand.compile(lambda x: x, **kwargs)


def test_nested_compile() -> None:
    inner = argand.compile(lambda x: x * 2, backend="eager")
    backend = CountingBackend()
    assert_same(X * 2 + 1, argand.compile(lambda x: inner(x) + 1, backend=backend, fullgraph=True)(X))
    assert len(backend.graphs) == 1


def test_disable() -> None:
    backend = CountingBackend()
    eager_only = argand.disable(lambda x: x + 1)
    assert_same(X + 1, argand.compile(lambda x: eager_only(x), backend=backend)(X))
    assert not backend.graphs
    model = argand.compile(Net(), disable=True)
    assert type(model) is Net


@pytest.mark.parametrize("mark", [torch.compile, torch.compiler.disable])
def test_wrappers_that_copy_marks_of_compilers(mark: Any) -> None:
    marked = mark(lambda x: x * 2)

    @functools.wraps(marked)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return marked(x) + 1

    assert_same(X * 2, argand.compile(marked, backend="eager")(X))
    assert_same(X * 2 + 1, argand.compile(wrapper, backend="eager")(X))
    assert_same(X * 2 + 4, argand.compile(lambda x: wrapper(x) + 3, backend="eager")(X))


def test_what_torch_marks_for_its_own_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    # As torch does once torch.compile is used.
    mark = torch.compiler.disable(torch.optim.LBFGS.step, reason="not supported")
    monkeypatch.setattr(torch.optim.LBFGS, "step", mark)

    def trained(compile: Any) -> tuple[torch.Tensor, list[int]]:
        weight, steps = nn.Parameter(torch.ones(3)), []
        optimizer = torch.optim.LBFGS([weight], max_iter=2)
        optimizer.register_step_post_hook(lambda *_: steps.append(1))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight - 3).square().sum()
            loss.backward()
            return loss

        compile(optimizer.step)(closure)
        return weight, steps

    findings = Findings()
    with findings.listening():
        assert_same(trained(lambda step: step), trained(lambda step: argand.compile(step, backend="eager")))
    assert findings.graphs or findings.breaks  # captured, or it is said why not


def test_generators_and_coroutines_run_untouched() -> None:
    def numbers(x):
        yield x + 1
        yield x + 2

    assert_same([X + 1, X + 2], list(argand.compile(numbers, backend="eager")(X)))

    def consume(values, x):
        return sum(values) + x

    assert_same(X + 3, argand.compile(consume, backend="eager")((i for i in range(3)), X))


def test_threads() -> None:
    compiled = argand.compile(lambda x, n: x.sin() * n, backend="eager")
    wrong: list[int] = []

    def run() -> None:
        for n in range(4):
            x = torch.randn(n + 1)
            if not torch.equal(compiled(x, n), x.sin() * n):
                wrong.append(n)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_captured_outside() -> None:
    backend = CountingBackend()

    def f(x):
        return x + 1

    compiled = argand.compile(f, backend=backend)
    f(X)
    assert not backend.graphs
    compiled(X)
    f(X * 2)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
    ],
)
def test_hooks_of_all_modules_fire_as_often_as_in_eager(register) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = argand.compile(model, backend="eager")
    compiled(torch.ones(1, 2))
    seen: dict[str, list[nn.Module]] = {"eager": [], "compiled": []}
    now = "eager"
    handle = register(lambda module, *args: seen[now].append(module) or None)
    try:
        for now, each in (("eager", model), ("compiled", compiled)):
            each(torch.ones(1, 2, requires_grad=True)).sum().backward()
    finally:
        handle.remove()
    assert seen["eager"] == seen["compiled"] and len(seen["eager"]) == 3
    compiled(torch.ones(1, 2))
    assert len(seen["compiled"]) == 3
