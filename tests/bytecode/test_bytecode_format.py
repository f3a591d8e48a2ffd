"""How listings of bytecode spell constants."""

from __future__ import annotations

import enum
import math

import pytest

from argand.bytecode.format import constant_text

torch = pytest.importorskip("torch")


class Colour(enum.Enum):
    RED = 1


class Loud(type):
    def __repr__(cls) -> str:
        raise AssertionError("called")

    __eq__ = __hash__ = __repr__  # type: ignore[assignment]


class Object(metaclass=Loud):
    __repr__ = __str__ = __len__ = Loud.__repr__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value, text",
    [
        (1, "1"),
        (-0.0, "-0.0"),
        ("a\nb", "'a\\nb'"),
        (None, "None"),
        (..., "Ellipsis"),
        ((1, "x"), "(1, 'x')"),
        ((1,), "(1,)"),
        (frozenset({2}), "frozenset({2})"),
        ({"a": 1}, "<dict of 1>"),
        (math, "<module math>"),
        (math.sin, "<built-in function sin>"),
        (constant_text, "<function constant_text>"),
        (int, "<class 'int'>"),
        (torch.float32, "torch.float32"),
        (torch.device("cpu"), "device(type='cpu')"),
        (Colour.RED, "<Colour.RED>"),
        (Object(), "<Object object>"),
        ((Object(), 1), "(<Object object>, 1)"),
        (torch.ones(10**3), "<Tensor object>"),
    ],
    ids=range(19),
)
def test_constant(value: object, text: str) -> None:
    assert constant_text(value) == text


def test_class_is_named_without_its_metaclass() -> None:
    assert constant_text(Object).startswith("<class '") and constant_text(Object).endswith("Object'>")


def test_long_constants_are_cut() -> None:
    assert len(constant_text("x" * 10_000)) == 200
    assert constant_text(tuple(range(100))).endswith("19, ...)")
