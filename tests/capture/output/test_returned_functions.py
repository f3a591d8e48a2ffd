"""Functions of classes that a graph break hands on are the program's own, not copies, whatever cells and defaults they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand

MARK = object()


class Base:
    def go(self, x: torch.Tensor, mark: Any = MARK) -> Any:
        argand.graph_break()
        return x + 1, mark is MARK


class Below(Base):
    def go(self, x: torch.Tensor, mark: Any = MARK) -> Any:
        argand.graph_break()
        return super().go(x, mark)[0], mark is MARK

    @classmethod
    def made(cls, mark: Any = MARK) -> Any:
        return __class__, mark  # type: ignore[name-defined]

    @staticmethod
    def still(mark: Any = MARK) -> Any:
        return __class__, mark  # type: ignore[name-defined]

    @property
    def shown(self) -> Any:
        return __class__  # type: ignore[name-defined]


def kept(read: Callable[[Any], Any]) -> Callable[..., Any]:
    def program(x: torch.Tensor, o: Any) -> Any:
        x = x * 2
        held = read(o)
        argand.graph_break()
        return x, getattr(held, "__func__", held)

    return program


READS: dict[str, Callable[[Any], Any]] = {
    "method": lambda o: o.go,
    "class method": lambda o: o.made,
    "static method": lambda o: o.still,
    "through the class": lambda o: type(o).go,
    "through super": lambda o: super(Below, o).go,
    "property": lambda o: type(o).shown.fget,
}


@pytest.mark.parametrize("read", READS)
def test_function_over_a_break_is_the_same(read: str) -> None:
    program = kept(READS[read])
    x, o = torch.ones(2), Below()
    assert argand.compile(program, backend="eager")(x, o)[1] is program(x, o)[1]


def test_method_with_a_cell_and_defaults_that_breaks_the_graph() -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        x = x * 2
        for _ in range(2):
            x, same = o.go(x)
        return x, same

    x = torch.ones(2)
    assert str(argand.compile(program, backend="eager")(x, Below())) == str(program(x, Below()))


def test_default_that_a_native_library_compares_by_identity() -> None:
    """numpy.ma passes its mark for "no value" on as a default."""

    def program(x: torch.Tensor, a: Any) -> torch.Tensor:
        t = x * 1.0
        for i in range(2):
            t = t + a.mean() * i
        return t

    x, a = torch.ones(2), np.ma.array([1.0, 2.0], mask=[0, 1])
    assert torch.equal(argand.compile(program, backend="eager")(x, a), program(x, a))
