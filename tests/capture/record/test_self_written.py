"""Tables that packages fill in the first call: it runs eagerly, once, and no version is compiled for it alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings
from outcomes.processes import STORED, Program

PACKAGE = """
import threading
import torch
table, local, filled = {}, threading.local(), 0

class Kind:
    pass

KIND = Kind()

class Only:
    instance = None

    def __new__(cls):
        if Only.instance is None:
            Only.instance = object.__new__(cls)
        return Only.instance

class Flag:
    state = None

class Off(Flag):
    pass

def by_class(x):
    global filled
    found = table.get(type(x))
    if found is None:
        filled += 1
        found = table[type(x)] = "tensor"
    return x + len(found)

def of_thread(x):
    try:
        stack = local.stack
    except AttributeError:
        stack = local.stack = [2]
    return x * stack[-1]

def attribute(x):
    if not hasattr(KIND, "factor"):
        KIND.factor = 3
    return x * KIND.factor

def by_pair(x):
    try:
        factor = table[type(x), int]
    except KeyError:
        factor = table[type(x), int] = 3
    return x * factor

def computed(x):
    if "computed" not in table:
        table["computed"] = x.sin()
    return table["computed"]

def only_one(x):
    return x * (2 if Only() is Only.instance else 3)

def flag(x):
    before, Off.state = Off.state, True
    x = x * (2 if Off.state else 3)
    Off.state = before
    return x

def of_argument(given):
    if "twice" not in given:
        given["twice"] = given["x"] * 2
    return given["twice"]

def main(x):
    return by_class(x).sin()

def check(compile):
    compiled = compile(main)
    for number in range(3):
        x = torch.full((3,), float(number))
        assert torch.equal(compiled(x), main(x))
    assert filled == 1 and table == {torch.Tensor: "tensor"}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "tabled.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield importlib.import_module("tabled")
    sys.modules.pop("tabled")


def graphs_of(compiled: Callable[..., Any], calls: int = 3) -> list[int]:
    """How many graphs there were after each call; none breaks, and nothing is compiled again."""
    findings, counts = Findings(), []
    with findings.listening():
        for number in range(calls):
            x = torch.full((3,), float(number))
            assert compiled(x).shape == x.shape
            counts.append(len(findings.graphs))
    assert not findings.breaks and not findings.recompiles
    return counts


@pytest.mark.parametrize("name", ["by_class", "of_thread", "attribute", "by_pair", "only_one"])
def test_the_first_call_runs_eagerly(package: ModuleType, name: str) -> None:
    function = getattr(package, name)
    compiled = argand.compile(lambda x: function(x) + 1, backend="eager")
    assert graphs_of(compiled) == [0, 1, 1]
    x = torch.ones(3)
    assert torch.equal(compiled(x), function(x) + 1)


def test_a_flag_is_set_and_put_back_in_its_class(package: ModuleType) -> None:
    assert graphs_of(argand.compile(package.flag, backend="eager")) == [1, 1, 1]
    assert vars(package.Off)["state"] is None
    package.Flag.state = 5
    assert torch.equal(argand.compile(package.flag, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
    assert package.Off.state is None


@pytest.mark.parametrize("how", ["one graph", "own backend"])
def test_who_asks_for_a_graph_gets_it(package: ModuleType, how: str) -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    chosen: Any = "eager" if how == "one graph" else backend
    compiled = argand.compile(package.by_class, backend=chosen, fullgraph=how == "one graph")
    findings = Findings()
    with findings.listening():
        compiled(torch.ones(3))
    assert len(findings.graphs) == 1 and package.filled == 1 and len(seen) == (how == "own backend")


def test_what_is_behind_a_graph_is_told_the_same_as_what_was_in_it(package: ModuleType) -> None:
    """torchrl's distributions have other transforms where they are compiled, and are compared with each other."""

    def answers(x: torch.Tensor) -> tuple[bool, bool, torch.Tensor]:
        first, x = torch.compiler.is_compiling(), x + 1
        argand.graph_break()
        return first, torch.compiler.is_compiling(), package.by_class(x)

    first, second, x = argand.compile(answers, backend="eager")(torch.ones(3))
    assert first is second is True and package.filled == 1 and torch.equal(x, torch.full((3,), 8.0))


def test_what_is_an_arguments_is_no_table(package: ModuleType) -> None:
    compiled = argand.compile(lambda x: package.of_argument({"x": x}), backend="eager")
    assert graphs_of(compiled) == [1, 1, 1]
    given = argand.compile(lambda given: package.of_argument(given), backend="eager")
    findings = Findings()
    with findings.listening():
        for _ in range(2):
            x = torch.ones(3)
            assert torch.equal(given({"x": x}), x * 2)
    assert len(findings.graphs) == 1


def test_the_programs_own_table_is_captured_in_the_first_call() -> None:
    table: dict[type, int] = {}

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * table.setdefault(type(x), 2)

    findings = Findings()
    with findings.listening():
        argand.compile(function, backend="eager")(torch.ones(3))
    assert len(findings.graphs) == 1 and table == {torch.Tensor: 2}


def test_a_table_that_is_emptied_again_and_again(package: ModuleType) -> None:
    compiled = argand.compile(package.by_class, backend="eager")
    findings = Findings()
    with findings.listening():
        for number in range(1, 7):
            package.table.clear()
            assert torch.equal(compiled(torch.zeros(3)), torch.full((3,), 6.0))
            assert package.filled == number and package.table == {torch.Tensor: "tensor"}
            assert len(findings.graphs) == (number > 1)  # of the state that each call finds


def test_results_with_gradients_are_of_the_call(package: ModuleType) -> None:
    compiled = argand.compile(package.computed, backend="eager")
    findings = Findings()
    with findings.listening():
        for _ in range(3):
            package.table.clear()
            assert compiled(torch.ones(3, requires_grad=True)) is package.table["computed"]
    assert len(findings.graphs) == 1


def test_arguments_of_all_kinds_and_cells(package: ModuleType) -> None:
    def function(x: torch.Tensor, /, *more: torch.Tensor, scale: float = 2.0, **named: torch.Tensor) -> torch.Tensor:
        def inner() -> torch.Tensor:
            return x * scale + more[0] - named["bias"]

        return package.by_class(inner())

    ones = torch.ones(3)
    compiled = argand.compile(function, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(ones, ones, bias=ones, scale=3.0), torch.full((3,), 9.0))


def test_later_processes_know(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(folder, PACKAGE)
        assert [program.run(), program.run()] == [["stored"] * 2, ["mismatch", "hit", "hit"]], program.reasons


TRAINING: dict[str, Callable[..., Any]] = {
    "Adam": lambda params: (torch.optim.Adam(params, lr=0.1),),
    "groups": lambda params: (torch.optim.RMSprop([{"params": [p]} for p in params], lr=0.1, momentum=0.5),),
    "SGD": lambda params: (torch.optim.SGD(params, lr=0.1),),
    "rates": lambda params: (o := torch.optim.SGD(params, lr=0.1), torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)),
    "of its own": lambda params: (Momentum(params, {"lr": 0.1}),),
}


class Momentum(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["count"] = torch.zeros_like(p), 0
                state["count"] += 1
                state["mean"].lerp_(p.grad, 1 / state["count"])
                p.sub_(state["mean"], alpha=group["lr"])


def trained(made: Callable[..., Any], wrap: Callable[..., Any], scaled: bool = False, counts: Any = None) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer, *schedules = made(list(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if scaled:
            scaler.step(optimizer), scaler.update()
        else:
            optimizer.step()
        for schedule in schedules:
            schedule.step()
        return loss.detach()

    call, findings, losses = wrap(step), Findings(), []
    with findings.listening():
        for number in range(4):
            losses.append(call(torch.full((2, 3), number + 1.0)))
            if counts is not None:
                counts.append(len(findings.graphs))
    assert not findings.recompiles
    return [*losses, *(p.detach() for p in model.parameters()), optimizer.param_groups[0]["lr"]]


@pytest.mark.parametrize("name", TRAINING)
def test_the_first_step_of_training_runs_eagerly_where_it_sets_up(name: str) -> None:
    counts: list[int] = []
    got = trained(TRAINING[name], lambda step: argand.compile(step, backend="eager"), counts=counts)
    torch.testing.assert_close(got, trained(TRAINING[name], lambda step: step))
    assert counts == ([1, 1, 1, 1] if name == "SGD" else [0, 1, 1, 1])


def test_the_first_use_of_a_scaler_sets_it_up() -> None:
    counts: list[int] = []
    got = trained(TRAINING["SGD"], lambda step: argand.compile(step, backend="eager"), True, counts)
    torch.testing.assert_close(got, trained(TRAINING["SGD"], lambda step: step, True))
    assert counts[0] == 0 and counts[1] == counts[-1] > 0


def test_optimizers_that_begin_in_every_call_are_compiled() -> None:
    """As inner loops do that forget what they kept."""
    w = torch.nn.Parameter(torch.ones(3))
    optimizer, findings = torch.optim.Adam([w], lr=0.1), Findings()

    def step() -> None:
        optimizer.state.clear()
        for _ in range(2):
            optimizer.zero_grad()
            w.square().sum().backward()
            optimizer.step()

    compiled = argand.compile(step, backend="eager")
    with findings.listening():
        for _ in range(5):
            compiled()
    before = w.detach().clone()
    w.data = torch.ones(3)
    for _ in range(5):
        step()
    torch.testing.assert_close(w.detach(), before)
    assert findings.graphs
