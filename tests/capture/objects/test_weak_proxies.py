"""`weakref.proxy` of an object, as trainers hand to their modules: attributes are read and written behind it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import assert_same

X = torch.ones(2)


class Trainer:
    asked = 0

    def __init__(self) -> None:
        self.step, self.names, self.weight = 3, ["a"], torch.full((2,), 2.0)

    @property
    def twice(self) -> int:
        return self.step * 2

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.step

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.step


class Nosy(Trainer):
    def __getattribute__(self, name: str) -> Any:
        Trainer.asked += 1
        return super().__getattribute__(name)


def reads(x: torch.Tensor, p: Any) -> Any:
    return p.scaled(x) * p.weight + p.twice, p.names, getattr(p, "none", None), hasattr(p, "step"), p.__class__


def writes(x: torch.Tensor, p: Any) -> Any:
    p.step += 1
    p.names.append("b")
    p.note = x + 1
    del p.weight
    return x * p.step, p.note


def asks_for_the_proxy(x: torch.Tensor, p: Any) -> Any:
    return x + p.step, type(p), isinstance(p, Trainer)


def misses(x: torch.Tensor, p: Any) -> Any:
    told = []
    for attempt in (lambda: p.none, lambda: p.none(x), lambda: delattr(p, "none"), lambda: getattr(p, "no" + "ne")):
        try:
            attempt()
        except AttributeError as error:
            told.append((str(error), error.name))
    return x + 1, told


WHOLE = (reads, writes, misses)


@pytest.mark.parametrize("cls", [Trainer, Nosy])
@pytest.mark.parametrize("program", [reads, writes, misses, asks_for_the_proxy])
def test_as_eager(program: Callable[..., Any], cls: type[Trainer]) -> None:
    def outcome(fn: Callable[..., Any]) -> Any:
        found = []
        for step in (3, 3, 5, 6):
            trainer = cls()
            trainer.step = step
            Trainer.asked = 0
            result = fn(X, weakref.proxy(trainer))
            asked = Trainer.asked if program is not writes else 0  # writes that are replayed look for attributes, too
            found.append((result, sorted(vars(trainer)), trainer.step, trainer.names, asked))
        return found

    compiled = argand.compile(program, backend="eager", fullgraph=program in WHOLE and cls is Trainer)
    assert_same(outcome(program), outcome(compiled))


def test_one_whose_object_is_gone() -> None:
    trainer = Trainer()
    proxy = weakref.proxy(trainer)
    compiled = argand.compile(reads, backend="eager")
    compiled(X, proxy)
    del trainer
    with pytest.raises(ReferenceError):
        compiled(X, proxy)


def test_the_same_proxy_of_an_object_that_changes() -> None:
    trainer = Trainer()
    proxy = weakref.proxy(trainer)
    compiled = argand.compile(lambda x: (proxy.scaled(x), proxy.twice), backend="eager", fullgraph=True)
    for step in range(3, 7):
        trainer.step = step
        assert_same((X * step, step * 2), compiled(X))
    trainer.scaled = lambda x: x - 1  # type: ignore[method-assign]
    assert_same(X - 1, compiled(X)[0])
