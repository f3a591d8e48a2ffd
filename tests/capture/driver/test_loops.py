"""Loops that Python runs because a graph broke in them.

Compiled round by round where there is a graph, else left alone; those of installed packages run as they are written, and
what they call is captured.
"""

from __future__ import annotations

import contextlib
import io
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand._core import _C
from argand.capture.driver.explain import Findings
from helpers import CountingBackend

ROUNDS = 20_000


def written(x: torch.Tensor, items: list[float]) -> Any:
    out, total = io.StringIO(), 0.0
    for item in items:
        total += item
        out.write("a")
    return x * total, len(out.getvalue())


def comprehended(x: torch.Tensor, items: list[float]) -> Any:
    out = io.StringIO()
    return x * sum([out.write("a") for _ in items]), len(out.getvalue())


def forever(x: torch.Tensor, items: list[float]) -> Any:
    out, number = io.StringIO(), 0
    while True:
        number += out.write("a")
        if number == len(items):
            return x * number


def seconds(program: Any, *args: Any) -> float:
    start = time.thread_time()
    program(*args)
    return time.thread_time() - start


@pytest.mark.parametrize("program", [written, comprehended, forever])
def test_rounds_without_a_graph_cost_what_they_cost_eagerly(program: Any) -> None:
    x, items = torch.ones(3), [1.0] * ROUNDS
    compiled = argand.compile(program, backend="eager")
    want = program(x, items)
    for _ in range(3):
        assert str(compiled(x, items)) == str(want)
    pairs = [(seconds(compiled, x, items), seconds(program, x, items)) for _ in range(5)]
    assert min(mine / eager for mine, eager in pairs) < 5  # it was 50 to 150


def test_rounds_with_a_graph_stay_compiled() -> None:
    calls = []

    def counting(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(1)
            return graph(*args)

        return run

    def program(x: torch.Tensor, out: io.StringIO) -> Any:
        for _ in range(1500):
            x = x + 1
            out.write("a")
        return x

    out = io.StringIO()
    compiled = argand.compile(program, backend=counting)
    assert torch.equal(compiled(torch.zeros(2), out), torch.full((2,), 1500.0))
    assert len(calls) == 1500 and len(out.getvalue()) == 1500


def test_what_is_called_behind_such_a_loop_is_still_compiled() -> None:
    counting = CountingBackend()

    def part(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def program(x: torch.Tensor, items: list[float]) -> Any:
        _, length = written(x, items)
        return part(x) * length

    compiled = argand.compile(program, backend=counting)
    x, items = torch.ones(3), [1.0] * 3000
    for _ in range(2):
        assert torch.equal(compiled(x, items), program(x, items))
    assert any("sin" in graph.code for graph in counting.graphs)


# ----------------------------------------------------------------------- of installed packages

_SOURCE = """
def field(y):
    return y.sin() * 2 + 1

def solve(y, rounds):
    out = []
    for step in range(rounds):
        y = field(y)
        if y.sum() > 1000:  # decided by values
            break
        out.append(y * step)
    return sum(out)

def search(y):
    rounds = 0
    while True:
        y = field(y) / 3
        rounds += 1
        if y.abs().max() < 1.2 or rounds > 4:
            return y, rounds

def adapt(y, rounds):
    print(end="")
    total = 0
    for i in range(rounds):
        y = field(y)
        while y.abs().max() > 1:
            y = field(y) / 4
            total += 1
    return y, total

def shrink(y):
    while (y.abs() > 0.6).any():
        y = field(y) / 4
    return y

def grow(y, rounds):
    if y.dim() > 1:
        for _ in range(rounds):
            y = field(y)
            if y.sum() > 1000:
                break
    return y * 2

@contextlib.contextmanager
def managed():
    yield 2

def passed_on(y, rounds):
    with managed() as factor:
        return solve(y, rounds * factor)

def before(y, rounds):
    y = (y * 3).cos()
    print(end="")
    return y + 1

def entries(indices, y):
    return torch.sparse_coo_tensor(indices, y, (4, 4))
"""


def library(place: str) -> types.SimpleNamespace:
    namespace: dict[str, Any] = {"contextlib": contextlib, "torch": torch}
    exec(compile(_SOURCE, place, "exec"), namespace)
    return types.SimpleNamespace(**namespace)


@pytest.mark.parametrize("name", ["solve", "search"])
def test_one_break_and_the_rest_is_pythons(name: str) -> None:
    program = getattr(library("/lib/site-packages/solvers/fixed.py"), name)
    args = (4,) if name == "solve" else ()
    backend, findings = CountingBackend(), Findings()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    with findings.listening():
        for _ in range(4):
            want, got = program(x, *args), compiled(x, *args)
            assert str(want) == str(got)
        seen = len(backend.graphs)
        assert str(program(x + 1, *args)) == str(compiled(x + 1, *args)) and len(backend.graphs) == seen
    assert len(findings.breaks) == 1 and len(findings.recompiles) == 0
    assert [backend.ops] == [3]  # of `field`


def test_containers_of_other_modules_are_still_compiled_whole() -> None:
    """One with a package's module that breaks the graph runs as it is written, and left all others to Python."""

    before = library("/lib/site-packages/solvers/fixed.py").before

    class Package(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return before(x, 1)

    def container(*kinds: type[torch.nn.Module]) -> torch.nn.Module:
        return torch.nn.Sequential(*[part for kind in kinds for part in (torch.nn.Linear(3, 3), kind())])

    findings, sizes = Findings(), iter(range(2, 20))
    broken = container(torch.nn.Tanh, Package)
    compiled = argand.compile(broken, backend="eager")
    for train in (True, True, True, False, False, True):
        x = torch.randn(next(sizes), 3)
        torch.testing.assert_close(compiled.train(train)(x), broken(x))
    for number in (1, 2, 3):
        whole = container(*[torch.nn.Tanh] * number)
        compiled, x = argand.compile(whole, backend="eager"), torch.randn(2, 3)
        with findings.listening():
            torch.testing.assert_close(compiled(x), whole(x))
        assert len(findings.graphs) == number and not findings.breaks


def test_what_only_passes_on_is_pythons_with_what_it_calls() -> None:
    program = library("/lib/site-packages/solvers/fixed.py").passed_on
    backend, findings = CountingBackend(), Findings()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    with findings.listening():
        for _ in range(4):
            assert str(program(x, 4)) == str(compiled(x, 4))
    assert backend.ops == 3 and not findings.recompiles  # of `field`
    assert len(findings.breaks) == len(findings.left_to_python) == 1  # told of once, and no graph ends there


@pytest.mark.parametrize("program, left", [
    (lambda x: torch.cov(x), True),
    (lambda x: torch.cov(x * 2), False),
    (lambda x: torch.cov(x) if len(x) > 2 else x + 1, False),
    (lambda x: torch.cov(x) + 1, False),
])  # fmt: skip
def test_an_operation_that_no_graph_holds_is_not_compiled_around(program: Callable[..., Any], left: bool) -> None:
    """Where there is nothing else: what stands for the program's code would only call it."""
    compiled = argand.compile(program)
    for size in (4, 4, 5, 6):
        x = torch.arange(float(size))
        assert torch.equal(program(x), compiled(x))
    assert (not _C.code_entries(program.__code__)) == left


def test_versions_for_other_ways_are_used_on() -> None:
    program, runs = library("/lib/site-packages/solvers/fixed.py").grow, []
    compiled = argand.compile(program, backend=lambda graph, _: lambda *args: (runs.append(1), graph(*args))[1])
    x = torch.rand(3)
    for given, graphs in ((x, 1), (x[None], 3), (x[None], 3), (x, 1)):
        runs.clear()
        torch.testing.assert_close(compiled(given, 3), program(given, 3))
        assert len(runs) == graphs


def test_a_loop_behind_a_break_is_pythons_too() -> None:
    """What goes on after a break before the loop is a resume function: its loop is the function's."""
    program = library("/lib/site-packages/solvers/fixed.py").adapt
    findings, backend = Findings(), CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.linspace(0.1, 1.5, 3)
    with findings.listening():
        for _ in range(4):
            assert str(program(x, 4)) == str(compiled(x, 4))
    assert len(findings.breaks) == 2 and not findings.recompiles  # at `print`, and in the loop
    assert backend.ops == 3  # of `field`


def test_what_is_not_in_a_loop_is_captured_on_both_sides() -> None:
    program = library("/lib/site-packages/solvers/fixed.py").before
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    for _ in range(2):
        assert torch.equal(program(x, 2), compiled(x, 2))
    assert len(backend.graphs) == 2


def test_sparse_tensors_have_no_memory_to_compare() -> None:
    program, findings = library("/lib/site-packages/graphs/edges.py").entries, Findings()
    compiled = argand.compile(program, backend="eager")
    indices = torch.tensor([[0, 2], [1, 3]])
    with findings.listening():
        for y in (torch.rand(2), torch.rand(2)):
            assert torch.equal(compiled(indices, y).to_dense(), program(indices, y).to_dense())
    assert not findings.breaks


def test_loops_of_the_program_are_compiled_round_by_round() -> None:
    program = library("/home/me/train.py").solve
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, 4), program(x, 4))
    assert backend.ops > 3


def test_a_loop_of_the_program_around_layers_of_a_package_that_break_is_pythons() -> None:
    """Each is of another kind, and would be a version of the loop's body."""
    make, layers = library("/lib/site-packages/layers/kinds.py").before, []
    for number in range(4):
        kind = type(f"Layer{number}", (torch.nn.Module,), {"forward": lambda self, y: make(y, 1)})
        layers.append(kind())
    findings, backend = Findings(), CountingBackend()

    def program(y: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            y = layer(y) * 2
        return y

    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    with findings.listening():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), program(x))
    assert {reason.kind for reason in findings.breaks} == {"print"}  # and no loop that goes on after one
    assert not findings.recompiles and backend.ops == 3  # of `before`, on both sides


def test_a_loop_that_broke_the_graph_of_a_caller_is_not_told_of_twice() -> None:
    program = library("/lib/site-packages/solvers/fixed.py").solve
    findings, backend = Findings(), CountingBackend()

    def caller(y: torch.Tensor) -> torch.Tensor:
        return program(y * 2, 4) + 1

    compiled = argand.compile(caller, backend=backend)
    x = torch.rand(3)
    with findings.listening():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), caller(x))
    assert [reason.where[-1].function for reason in findings.breaks] == ["solve"]
    assert backend.ops == 5  # of `field`, and of `caller` on both sides


def test_the_test_of_a_loop_belongs_to_it_the_first_time_too() -> None:
    """Python evaluates it before the loop, and once more at the end of each round."""
    program = library("/lib/site-packages/solvers/fixed.py").shrink
    findings, backend = Findings(), CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.linspace(0.1, 1.5, 3)
    with findings.listening():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), program(x))
    assert len(findings.breaks) == 1 and not findings.recompiles
    assert backend.ops == 3  # of `field`


def test_a_container_with_hooks_that_break_each_round_is_pythons() -> None:
    """As packages put a backward hook on each module: torch's code looks at the history of what comes and goes."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    norms: list[float] = []
    for module in model:
        module.register_full_backward_hook(lambda module, before, after: norms.append(float(after[0].norm())))
    findings = Findings()
    compiled = argand.compile(lambda x: model(x * 2), backend="eager")
    with findings.listening():
        for seed in range(4):
            outcomes = []
            for call in (compiled, lambda x: model(x * 2)):
                torch.manual_seed(seed)
                norms.clear()
                model.zero_grad()
                call(torch.rand(5, 3, requires_grad=True)).sum().backward()
                outcomes.append([*norms, *[p.grad.tolist() for p in model.parameters()]])
            assert str(outcomes[0]) == str(outcomes[1]) and len(norms) == 3
    assert len(findings.breaks) == 1 and not findings.recompiles  # of the layers, each of which is one operation


def test_a_container_with_the_programs_own_break_is_compiled_round_by_round() -> None:
    class Printing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print(end="")
            return x + 1

    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Tanh(), Printing(), torch.nn.Tanh())
    backend = CountingBackend()
    compiled = argand.compile(model, backend=backend)
    x = torch.rand(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert "tanh" in backend.graphs[0].code and len(backend.graphs) == 3


def test_packed_sequences_break_no_graph() -> None:
    """With tensors that are not packed the same LSTM is compiled, too."""
    embedding, lstm = torch.nn.Embedding(9, 4), torch.nn.LSTM(4, 4, batch_first=True)
    rnn = torch.nn.utils.rnn

    def encode(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = rnn.pack_padded_sequence(embedding(tokens) * 2, lengths, batch_first=True, enforce_sorted=False)
        states, _ = rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        return states.sum(1) + 1

    findings, tokens = Findings(), torch.randint(0, 9, (3, 6))
    compiled = argand.compile(encode, backend="eager")
    with findings.listening():
        for lengths in ([6, 2, 4], [6, 5, 1], [6, 1, 1]):
            torch.testing.assert_close(compiled(tokens, torch.tensor(lengths)), encode(tokens, torch.tensor(lengths)))
    assert not findings.breaks and len(findings.recompiles) <= 1

    backend, x = CountingBackend(), torch.rand(3, 6, 4)
    compiled, packed = argand.compile(lstm, backend=backend), rnn.pack_padded_sequence(x, [6, 3, 2], batch_first=True)
    for given in (packed, packed, x, x):
        for got, want in zip(compiled(given)[0], lstm(given)[0]):
            assert (got is None and want is None) or torch.allclose(got, want)
    assert len(backend.graphs) == 1


def test_an_optimizer_that_asks_for_values_in_its_loop_runs_as_it_is_written() -> None:
    """Its closure is captured; LBFGS asks for the value of each loss."""

    def program() -> Any:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer, x = torch.optim.LBFGS(module.parameters(), max_iter=4), torch.randn(5, 3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (module(x) - 1).square().mean()
            loss.backward()
            return loss

        return module, optimizer.step, closure

    module, step, closure = program()
    ours, other_step, other_closure = program()
    findings, compiled = Findings(), argand.compile(other_step, backend="eager")
    with findings.listening():
        for _ in range(4):
            torch.testing.assert_close(compiled(other_closure), step(closure))
    torch.testing.assert_close(list(ours.parameters()), list(module.parameters()))
    assert findings.graphs and len(findings.breaks) == 1 and not findings.recompiles
