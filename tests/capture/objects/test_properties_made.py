"""Properties that captured code makes of functions from before it, as torch.distributions does to validate arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand

X = torch.randn(4, 3)


def getter(self: Any) -> int:
    """The first text."""
    return 1


def setter(self: Any, value: object) -> None:
    pass


class Wrapping(property):
    def __init__(self, wrapped: Any) -> None:
        property.__init__(self, wrapped)


def whole(fn: Any) -> Any:
    argand.reset()
    return argand.compile(fn, backend="eager", fullgraph=True)


@pytest.mark.parametrize("name", ["Categorical", "Bernoulli", "Multinomial", "Normal"])
def test_distributions_that_validate(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        kind = getattr(torch.distributions, name)
        if name == "Normal":
            made = kind(x, x.exp(), validate_args=True)
        else:
            made = kind(logits=x, validate_args=True)
        return made.mean if name != "Categorical" else made.entropy(), isinstance(kind.mean, property)

    want, got = program(X), whole(program)(X)
    torch.testing.assert_close(got[0], want[0])
    assert got[1] is want[1]


def test_its_text_is_the_getters(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> Any:
        made = Wrapping(getter), property(getter, setter), property(None, setter), property(getter, doc="own")
        return x + 1, [(each.__doc__, each.fget is getter, each.fset is setter) for each in made]

    compiled = whole(program)
    assert compiled(X)[1] == program(X)[1]
    monkeypatch.setattr(getter, "__doc__", "another")
    assert compiled(X)[1] == program(X)[1]


def test_a_text_that_captured_code_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getter, "__doc__", getter.__doc__)

    def program(x: torch.Tensor, text: str) -> Any:
        getter.__doc__ = text
        return x + 1, Wrapping(getter).__doc__

    compiled = argand.compile(program, backend="eager")
    for text in ("a", "b"):
        assert compiled(X, text)[1] == text == getter.__doc__


@pytest.mark.parametrize(
    ("name", "value"),
    [("__doc__", "a"), ("__name__", "b"), ("__qualname__", "c"), ("__annotations__", {"a": int}), ("extra", 3)],
)
def test_a_field_of_a_function_that_captured_code_wrote(name: str, value: object) -> None:
    def subject(self: Any) -> None:
        """The first text."""

    def program(x: torch.Tensor) -> Any:
        before = getattr(subject, name, None)
        setattr(subject, name, value)
        return x + 1, before, getattr(subject, name)

    before = getattr(subject, name, None)
    compiled = argand.compile(program, backend="eager")
    assert compiled(X)[1:] == (before, value) and getattr(subject, name) == value
    assert compiled(X)[1:] == (value, value)
