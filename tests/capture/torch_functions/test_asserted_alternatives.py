"""`assert a or b` on tensors: one graph that checks that one of them holds, and eager's error where none does."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from tests.helpers import CountingBackend

import argand


def _monotonic(x: torch.Tensor) -> torch.Tensor:
    steps = x[1:] > x[:-1]
    if not (steps.all() or (~steps).all()):  # what `assert` is where pytest does not rewrite it
        raise AssertionError("not monotonic")
    return x * 2


def _three(x: torch.Tensor) -> torch.Tensor:
    if not ((x > 0).all() or (x < 0).all() or torch.isfinite(x).all()):
        raise ValueError("mixed")
    return x.sum()


def _both_forbidden(x: torch.Tensor) -> torch.Tensor:
    if (x > 3).any() and (x < 0).any():
        raise ValueError(f"wide: {x.max().item()}")
    return x + 1


def _elements(x: torch.Tensor) -> torch.Tensor:
    if not (x[0] < x[1] or x[0] > x[-1]):
        raise AssertionError
    return x - 1


def _check(x: torch.Tensor) -> None:
    if not ((x > 0).all() or (x < 0).all()):
        raise ValueError("mixed")


def _check_called(x: torch.Tensor) -> torch.Tensor:
    _check(x)
    return x * 3


INPUTS = [
    torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 5.0, -2.0]),
    torch.tensor([1.0, float("inf"), -2.0]), torch.tensor([2.0, 2.0, 2.0]), torch.tensor([-1.0, -2.0, -3.0]),
]  # fmt: skip


def _outcome(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> object:
    try:
        return f(x).tolist()
    except (AssertionError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("f", [_monotonic, _three, _both_forbidden, _elements, _check_called])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_as_eager_in_one_graph(f: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    compiled = argand.compile(f, backend=backend, fullgraph=True)
    for x in INPUTS:
        assert _outcome(compiled, x) == _outcome(f, x)


def test_alternatives_with_effects_run_as_in_eager() -> None:
    asked: list[int] = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        return (x < 0).all()

    def f(x: torch.Tensor) -> torch.Tensor:
        if not ((x > 0).all() or ask(x)):
            raise AssertionError("mixed")
        return x * 2

    compiled = argand.compile(f, backend="eager")
    for x in INPUTS:
        asked.clear()
        want, times = _outcome(f, x), len(asked)
        asked.clear()
        assert (_outcome(compiled, x), len(asked)) == (want, times)


def test_alternative_that_would_raise_is_not_computed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if not ((x > 0).all() or (x < torch.ones(7)).all()):
            raise AssertionError
        return x * 2

    compiled = argand.compile(f, backend="eager")
    assert torch.equal(compiled(INPUTS[0]), INPUTS[0] * 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="size"):
            compiled(INPUTS[2])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_side_that_warns_is_not_expected(backend: str) -> None:
    """`if (x < bound).any(): warnings.warn(...)`: one graph, and the warning at each call that eager gives it at."""

    def f(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any() or not torch.isfinite(x).all():
            warnings.warn(f"strange values in {x.dtype}", UserWarning, stacklevel=2)
            x = x.abs()
        return x * 2

    def outcome(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> object:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            result = call(x)
        return result.tolist(), [str(each.message) for each in given]

    backend = CountingBackend()
    counting = argand.compile(f, backend=backend)
    assert outcome(counting, INPUTS[0]) == outcome(f, INPUTS[0])
    assert len(backend.graphs) == 1
    compiled = argand.compile(f, backend=backend)
    for _ in range(3):
        for x in INPUTS:
            assert outcome(compiled, x) == outcome(f, x)
