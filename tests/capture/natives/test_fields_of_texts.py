"""`str.format` with fields that ask for attributes and items: of classes too, which are no objects with items of their own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


class Plain:
    """Nothing to be subscripted."""


class Generic:
    def __class_getitem__(cls, key: Any) -> Any:
        return (cls.__name__, key)


class Meta(type):
    def __getitem__(cls, key: Any) -> Any:
        return (cls.__name__, key)


class OfMeta(metaclass=Meta):
    """Subscripted by its metaclass."""


class Color(enum.Enum):
    A = 1


OBJECTS = [
    Plain,
    Generic,
    OfMeta,
    Color,
    int,
    list,
    type,
    torch.nn.Linear,
    torch.autograd.Function,
    Plain(),
    {"A": 1},
    [1],
    "abc",
    len,
    None,
]
FORMATS = [
    "{0[A]}",
    "{0[0]}",
    "{0.__name__}",
    "{0.__class__.__name__[0]}",
    "{0.__class__}",
    "{0.__dict__[A]}",
    "{0.__doc__}",
    "{0.__module__}",
    "{0._value}",
    "{0.__class__.__dict__[A]}",
    "{0.__init__.__name__}",
    "{}",
]


def formatted(text: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, o: Any) -> Any:
        try:
            return x + 1, text.format(o)
        except Exception as error:
            return x + 1, type(error), str(error)

    return program


def percent(text: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, o: Any) -> Any:
        try:
            return x + 1, text % o
        except Exception as error:
            return x + 1, type(error), str(error)

    return program


@pytest.mark.parametrize("program", [*map(formatted, FORMATS), *map(percent, ["%s", "abc", "%d", "%(A)s"])])
def test_is_eagers_text_or_error(program: Callable[..., Any]) -> None:
    for o in OBJECTS:
        argand.reset()
        assert argand.compile(program, backend="eager")(torch.ones(1), o)[1:] == program(torch.ones(1), o)[1:]
