"""Objects whose metaclass answers what is asked of a class: nobody asks where the program does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


def _held(x: Any, obj: Any) -> Any:
    y = x * 2
    print("", end="")
    return y + 1, obj


def _not_read_again(x: Any, obj: Any) -> Any:
    y = x * 2
    print("", end="")
    return y + 1, None


def _in_a_list(x: Any, obj: Any) -> Any:
    held = [obj]
    print("", end="")
    return x + 1, held.pop()


def _not_looked_at(x: Any, obj: Any) -> Any:
    return x * 3, obj


HOOKS = ("__eq__", "__ne__", "__hash__", "__getattribute__")


@pytest.mark.parametrize("function", [_held, _not_read_again, _in_a_list, _not_looked_at])
@pytest.mark.parametrize("hooks", [*itertools.combinations(HOOKS, 1), *itertools.combinations(HOOKS, 2)])
def test_what_a_metaclass_answers_is_not_asked(function: Callable[..., Any], hooks: tuple[str, ...]) -> None:
    asked: list[str] = []
    meta = type("Meta", (type,), {})
    obj = meta("Held", (), {})()

    def answers(name: str) -> Callable[..., Any]:
        def hook(*args: Any) -> Any:
            asked.append(name)
            return getattr(type, name)(*args) if name != "__eq__" else True

        return hook

    for name in hooks:
        setattr(meta, name, answers(name))
    expected, expected_obj = function(torch.ones(2), obj)
    by_eager = list(asked)
    compiled = argand.compile(function, backend="eager")
    for _ in range(2):
        del asked[:]
        result, given = compiled(torch.ones(2), obj)
        assert torch.equal(result, expected)
        assert given is expected_obj
        assert asked == by_eager
