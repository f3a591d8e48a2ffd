"""Audits: differences are found and said once, and the eager run leaves no trace."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import argand
from argand.debug.audit import AuditWarning, audited

CALLS: list[int] = []
COUNT = 0


@pytest.fixture(autouse=True)
def always():
    with argand.config.patch(audit_rate=1.0):
        yield
    CALLS.clear()


def test_sound_functions_are_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    @argand.compile
    def f(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        return torch.softmax(x * n, -1), n + 1

    for n in range(4):
        f(torch.randn(3, 4), n)
    assert f.auditor.audits == 4 and not f.auditor.findings
    assert not [w for w in recwarn if w.category is AuditWarning]


def test_missed_guard_is_reported_once() -> None:
    """A compiled version that does not notice that the number changed."""
    versions: list = []

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    def unsound(x: torch.Tensor, n: int) -> torch.Tensor:
        versions.append(n)
        return x * versions[0]

    checked = audited(unsound, f)
    with pytest.warns(AuditWarning, match="differs from eager: the result: allclose not within") as caught:
        checked(torch.ones(3), 2)
        assert torch.equal(checked(torch.ones(3), 3), torch.full((3,), 2.0))
        checked(torch.ones(3), 4)
    assert len(caught) == 1 and "test_missed_guard_is_reported_once" in str(caught[0].message)
    assert len(checked.auditor.findings) == 2


def test_wrong_exception_is_reported() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("never compiled")

    with pytest.warns(AuditWarning, match="eager raises ValueError: never compiled"):
        audited(lambda x: x, f)(torch.ones(1))


def test_effects_happen_once() -> None:
    global COUNT
    seen: list[int] = []
    cell = 0

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = torch.nn.BatchNorm1d(3)
            self.calls = 0
            self.log: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            global COUNT
            nonlocal cell
            COUNT += 1
            cell += 1
            self.calls += 1
            self.log.append(self.calls)
            CALLS.append(COUNT)
            seen.append(cell)
            return self.bn(x)

    COUNT = 0
    model = Model()
    compiled = argand.compile(model, backend="eager")
    x = torch.randn(8, 3)
    for _ in range(3):
        compiled(x)
    assert (COUNT, cell, model.calls) == (3, 3, 3)
    assert model.log == CALLS == seen == [1, 2, 3]
    assert int(model.bn.num_batches_tracked) == 3
    other = torch.nn.BatchNorm1d(3)
    for _ in range(3):
        other(x)
    torch.testing.assert_close(model.bn.running_mean, other.running_mean)


def test_arguments_are_written_once() -> None:
    def f(x: torch.Tensor, items: list) -> torch.Tensor:
        x.add_(1)
        items.append(x[0])
        return x * 2

    compiled = argand.compile(f, backend="eager")
    x, items = torch.zeros(2), []
    for _ in range(3):
        compiled(x, items)
    assert torch.equal(x, torch.full((2,), 3.0)) and len(items) == 3
    assert compiled.auditor.audits == 3 and not compiled.auditor.findings


def test_random_numbers_are_drawn_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3) + random.random()

    compiled = argand.compile(f, backend="eager")
    torch.manual_seed(1)
    random.seed(1)
    got = [compiled(torch.zeros(3)) for _ in range(3)]
    torch.manual_seed(1)
    random.seed(1)
    assert all(torch.equal(a, f(torch.zeros(3))) for a in got)
    assert not compiled.auditor.findings


def test_dropout_of_the_native_backend_is_no_finding(recwarn: pytest.WarningsRecorder) -> None:
    compiled = argand.compile(lambda x: torch.nn.functional.dropout(x * 2, 0.5))
    for _ in range(3):
        compiled(torch.ones(100))
    assert not [w for w in recwarn if w.category is AuditWarning]


def test_nothing_is_printed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print("once")
        return x + 1

    argand.compile(f, backend="eager")(torch.ones(2))
    assert capsys.readouterr().out == "once\n"


def test_optimizer_steps_are_left_alone() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    holder = torch.nn.Module()
    holder.weight = weight

    def step() -> None:
        holder.weight.grad = torch.ones(3)
        optimizer.step()

    compiled = argand.compile(step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            compiled()
    assert torch.equal(weight.detach(), torch.full((3,), -3.0))


def test_sample() -> None:
    with argand.config.patch(audit_rate=0.2):
        compiled = argand.compile(lambda x: x + 1, backend="eager")
        for _ in range(200):
            compiled(torch.ones(1))
        assert 5 < compiled.auditor.audits < 100
    with argand.config.patch(audit_rate=0.0):
        before = compiled.auditor.audits
        compiled(torch.ones(1))
        assert compiled.auditor.audits == before
        assert not hasattr(argand.compile(lambda x: x), "auditor"), "costs nothing when it is off"


def test_methods_and_nested_compiling() -> None:
    class Thing:
        @argand.compile(backend="eager")
        def double(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    inner = argand.compile(lambda x: x + 1, backend="eager")
    outer = argand.compile(lambda x: inner(x) * 3, backend="eager", fullgraph=True)
    assert torch.equal(Thing().double(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(outer(torch.ones(2)), torch.full((2,), 6.0))
    assert argand.compile(inner) is not inner
