"""A graph that writes to inputs and raises because of values: the inputs hold what eager had written by then."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import assert_same

import argand
from argand.capture.driver.explain import Findings

_RAISES = {
    "index": lambda x, bad: x[bad],
    "index_select": lambda x, bad: torch.index_select(x, 0, bad),
    "gather": lambda x, bad: x.gather(0, bad),
    "take": lambda x, bad: x.take(bad),
    "embedding": lambda x, bad: F.embedding(bad, x.view(-1, 1)),
    "setitem": lambda x, bad: x.__setitem__(bad, 1.0),
    "put": lambda x, bad: x.put_(bad, x[:2] * 2),
    "one_hot": lambda x, bad: F.one_hot(bad, 5),
    "nll": lambda x, bad: F.cross_entropy(x[:4].view(2, 2), bad),
    "assert": lambda x, bad: torch._assert_async((bad < 5).all()),
    "cholesky": lambda x, bad: torch.linalg.cholesky(torch.eye(2) * (5 - bad[1])),
    "divide": lambda x, bad: bad // (bad - bad),
    "bernoulli": lambda x, bad: torch.bernoulli(x + bad[1]),
}


def _outcome(fn: Any, size: int, bad: list[int], raising: Any) -> Any:
    x, log, box = torch.arange(float(size)), [], SimpleNamespace(step=None)
    torch.manual_seed(0)
    try:
        fn(x, torch.tensor(bad), raising, log, box)
        error = None
    except (IndexError, RuntimeError) as raised:
        error = type(raised).__name__, str(raised)[:40]
    return error, x, log, box.step, torch.rand(2)


def _written_before(x: Any, bad: Any, raising: Any, log: list[Any], box: Any) -> Any:
    x.mul_(3)
    log.append("before")
    box.step = x.sum()
    y = raising(x, bad)
    x.add_(1)
    log.append("after")
    return y


def _written_after(x: Any, bad: Any, raising: Any, log: list[Any], box: Any) -> Any:
    y = raising(x, bad)
    x.add_(1)
    return y


@pytest.mark.parametrize("name", _RAISES)
def test_eager_kernels(name: str) -> None:
    for fn, size in itertools.product((_written_before, _written_after), (5, 500)):
        argand.reset()
        compiled = argand.compile(fn, backend="aot_eager")
        for bad in ([0, 1], [0, 900]):
            assert_same(*(_outcome(f, size, bad, _RAISES[name]) for f in (fn, compiled)))


@pytest.mark.parametrize("name", ["index", "setitem", "nll", "cholesky", "bernoulli"])
def test_compiled_kernels(name: str) -> None:
    argand.config.fallback_random = True
    try:
        for fn, size in ((_written_before, 500), (_written_after, 5)):
            argand.reset()
            compiled = argand.compile(fn)
            for bad in ([0, 1], [0, 900]):
                assert_same(*(_outcome(f, size, bad, _RAISES[name]) for f in (fn, compiled)))
    finally:
        argand.config.fallback_random = False


def test_training() -> None:
    def step(x: Any, w: Any, bad: Any) -> Any:
        x.mul_(3)
        with torch.no_grad():
            w.mul_(0.5)
        return (x * w)[bad].sum() + x[bad].sum()

    outcomes = []
    for fn in (step, argand.compile(step), argand.compile(step, backend="aot_eager")):
        x, w = torch.arange(300.0), torch.ones(300, requires_grad=True)
        fn(x, w, torch.tensor([1, 2])).backward()
        with pytest.raises(IndexError) as raised:
            fn(x, w, torch.tensor([1, 300]))
        outcomes.append((str(raised.value), x, w.detach(), w.grad))
    for outcome in outcomes[1:]:
        assert_same(outcomes[0], outcome)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_write_that_autograd_records_and_one_that_it_does_not(backend: str) -> None:
    def program(x: Any, w: Any, bad: Any) -> Any:
        try:
            x.copy_(w.roll(1))
            x.detach().sub_(2)
            return w[bad]
        finally:
            x.detach().mul_(3)

    outcomes = []
    for fn in (program, argand.compile(program, backend=backend)):
        told = []
        for bad in ([1, 2], [1, 900]):
            x, w = torch.arange(300.0), torch.ones(300, requires_grad=True)
            try:
                told.append(fn(x, w * 1, torch.tensor(bad)))
            except IndexError:
                told.append(None)
            told += [x, x.requires_grad]
        outcomes.append(told)
    assert_same(*outcomes)


class _OnManifold(torch.nn.Parameter):
    """As optimizers of manifolds have them."""


@pytest.mark.parametrize("cls", [torch.nn.Parameter, _OnManifold])
def test_a_solver_behind_gradients_and_steps_is_part_of_the_graph(cls: type[torch.nn.Parameter]) -> None:
    """What the frame starts again with is put back, whatever class it is of; positions that are known are there."""

    def step(params: list[torch.nn.Parameter], log: list[int], a: torch.Tensor) -> torch.Tensor:
        loss = torch.stack([p.square().sum() for p in params]).sum()
        loss.backward()
        with torch.no_grad():
            for p in params:
                p.mul_(0.5)
                log.append(1)
                sides = p.detach() * 1
                sides[..., torch.arange(9), torch.arange(-9, 0)] += 1
                p.copy_(torch.linalg.solve(a, sides))
        return loss

    def outcomes(step: Any) -> list[Any]:
        params, log, seen = [cls(torch.full((9, 9), n + 1.0)) for n in range(2)], [], []
        for scale in (1.0, 0.0, 2.0):
            try:
                seen.append(step(params, log, torch.eye(9) * scale).detach())
            except RuntimeError as error:
                seen.append(str(error))
            seen += [len(log), *[(p.detach().clone(), p.grad.clone(), p._version) for p in params]]
        return seen

    findings = Findings()
    with findings.listening():
        assert_same(outcomes(step), outcomes(argand.compile(step, backend="aot_eager")))
    assert not findings.breaks
