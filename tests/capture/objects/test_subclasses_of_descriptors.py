"""Descriptors of classes that derive from C's: what C keeps in them is not looked up as an attribute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand


class Property(property):
    """Whose attributes lie."""

    def __set__(self, o: Any, value: Any) -> None:
        super().__set__(o, value)


class ClassMethod(classmethod):
    """Whose attributes lie."""


class StaticMethod(staticmethod):
    """Whose attributes lie."""


class Object:
    def __init__(self) -> None:
        self.held = 6.0

    doubled = Property(lambda self: self.held * 2, lambda self, value: setattr(self, "held", value))
    made = ClassMethod(lambda cls, n: n + len(cls.__name__))
    plain = StaticMethod(lambda n: n + 1)


def read(x: torch.Tensor, o: Any) -> Any:
    return x + 1, o.doubled, o.made(1), o.plain(2), type(o).plain(3)


def written(x: torch.Tensor, o: Any) -> Any:
    o.doubled = 7.0
    return x + 1, o.held


@pytest.mark.parametrize("program", [read, written])
def test_getattribute_is_not_asked(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    assert compiled(x, Object())[1:] == program(x, Object())[1:]
    for cls in (Property, ClassMethod, StaticMethod):
        monkeypatch.setattr(cls, "__getattribute__", lambda self, name: 2, raising=False)
    for _ in range(2):
        assert compiled(x, Object())[1:] == program(x, Object())[1:]
