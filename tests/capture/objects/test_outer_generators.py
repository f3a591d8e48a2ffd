"""Generators that had not begun when the compiled function got them: `model.parameters()`, `(f(x) for x in items)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.capture.driver.explain import Findings
from helpers import CountingBackend

T = torch.Tensor


def counted(items: list[T], log: list[str], scale: float = 2.0) -> Iterator[T]:
    log.append("begins")
    try:
        for item in items:
            yield item * scale
    finally:
        log.append("ends")


def listed(x: T, given: Any) -> Any:
    return [each + x for each in list(given)], list(given)


def walked(x: T, given: Any) -> Any:
    for each in given:
        x = x + each.sum()
    return x


def zipped(x: T, given: Any) -> Any:
    return [a * b + x for a, b in zip(given, [1.0, 2.0, 3.0])]


def summed(x: T, given: Any) -> Any:
    return sum((each.sum() for each in given), x)


def is_an_iterator(x: T, given: Any) -> Any:
    same = iter(given) is given
    items = [*given]
    return sum(items, x) if same else x, len(items)


def first(x: T, given: Any) -> Any:
    return next(given) + x, [each + 1 for each in given]


def left_alone(x: T, given: Any) -> Any:
    return x + 1, given


def handed_back(x: T, given: Any) -> Any:
    total = walked(x, given)
    return total, given


def delegated(x: T, given: Any) -> Any:
    def each() -> Iterator[T]:
        yield x
        yield from given

    return list(each())


def stopped_early(x: T, given: Any) -> Any:
    for each in given:
        return each + x
    return x


def broken_within(x: T, given: Any) -> Any:
    for each in given:
        x = x + each.sum()
        argand.graph_break()
    return x


def closed(x: T, given: Any) -> Any:
    given.close()
    return x + 1, list(given)


def asked(x: T, given: Any) -> Any:
    return x + 1, given.gi_frame is None, given.gi_suspended


def of_a_generator(items: list[T], log: list[str]) -> Any:
    return (each + 1 for each in counted(items, log))


def of_parameters(items: list[T], log: list[str]) -> Any:
    return (
        nn.Sequential(nn.Linear(2, 2, dtype=torch.double), nn.Linear(2, 2)).double().requires_grad_(False).parameters()
    )


def with_a_default(items: list[T], log: list[str]) -> Any:
    return counted(items, log)


def begun(items: list[T], log: list[str]) -> Any:
    generator = counted(items, log)
    next(generator)
    return generator


def over(items: list[T], log: list[str]) -> Any:
    generator = counted(items, log)
    list(generator)
    return generator


def with_cells(items: list[T], log: list[str]) -> Any:
    def each() -> Iterator[T]:
        log.append("begins")
        yield from items

    return each()


ONE_GRAPH: list[Callable[..., Any]] = [
    listed,
    walked,
    zipped,
    summed,
    is_an_iterator,
    left_alone,
    handed_back,
    delegated,
]
BREAKING: list[Callable[..., Any]] = [first, stopped_early, broken_within, closed, asked]
FRESH: list[Callable[..., Any]] = [with_a_default, of_a_generator]
OTHER: list[Callable[..., Any]] = [begun, over, with_cells]


def outcome(program: Callable[..., Any], make: Callable[..., Any]) -> list[Any]:
    seen: list[Any] = []
    for step in range(3):
        torch.manual_seed(step)
        log: list[str] = []
        given = make([torch.randn(2, 2) for _ in range(3)], log)
        try:
            result = program(torch.ones(2, 2), given)
        except StopIteration:
            result = "stops"
        left = [each for each in given]
        result = (
            tuple(item if item is not given else "the same" for item in result) if type(result) is tuple else result
        )
        seen.append((result, left, list(log)))
    return seen


@pytest.mark.parametrize("make", FRESH, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[..., Any], make: Callable[..., Any]) -> None:
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    assert repr(outcome(compiled, make)) == repr(outcome(program, make))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("make", FRESH + OTHER, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", ONE_GRAPH + BREAKING, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., Any], make: Callable[..., Any]) -> None:
    compiled = argand.compile(program, backend="eager")
    assert repr(outcome(compiled, make)) == repr(outcome(program, make))


def test_another_function_or_argument_is_another_version() -> None:
    compiled = argand.compile(walked, backend="eager")
    items = [torch.ones(2), torch.ones(2) * 2]
    for _ in range(2):
        for scale in (1.0, 3.0):
            assert torch.equal(compiled(torch.zeros(1), counted(items, [], scale)), torch.tensor([6.0 * scale]))
        assert torch.equal(compiled(torch.zeros(1), (each for each in items)), torch.tensor([6.0]))
        assert torch.equal(compiled(torch.zeros(1), (each for each in items[:1])), torch.tensor([2.0]))
    with pytest.raises(ValueError, match="already executing"):

        def itself() -> Iterator[T]:
            yield compiled(torch.zeros(1), generator)

        generator = itself()
        next(generator)


def test_gradients_are_clipped_behind_a_break() -> None:
    def step(model: nn.Module, x: T) -> T:
        model(x).square().sum().backward()
        argand.graph_break()
        return clipped(model.parameters())

    def clipped(parameters: Any) -> T:
        argand.graph_break()
        return nn.utils.clip_grad_norm_(parameters, 0.1)

    norms = []
    for how in (lambda f: f, lambda f: argand.compile(f, backend="eager")):
        torch.manual_seed(0)
        model, x, findings = nn.Linear(3, 2), torch.randn(4, 3), Findings()
        compiled = how(step)
        with findings.listening():
            norms.append([compiled(model, x), *(p.grad for p in model.parameters())])
        assert {reason.id for reason in findings.breaks} == ({"AG0028"} if norms[1:] else set())
    torch.testing.assert_close(*norms)
