"""Annotations, signatures and other tables that C code or the library finds on functions and classes, changed between
calls."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

PROGRAMS: dict[str, Callable[..., Any]] = {
    "annotations of a class": lambda x, fn, cls: x * len(cls.__annotations__),
    "annotation in": lambda x, fn, cls: x * (2 if "c" in cls.__annotations__ else 3),
    "annotations walked": lambda x, fn, cls: x * len([name for name in cls.__annotations__]),
    "annotations of a function": lambda x, fn, cls: x * len(fn.__annotations__),
    "hints of a class": lambda x, fn, cls: x * len(typing.get_type_hints(cls)),
    "hints of a function": lambda x, fn, cls: x * len(typing.get_type_hints(fn)),
    "signature": lambda x, fn, cls: x * len(inspect.signature(fn).parameters),
    "argspec": lambda x, fn, cls: x * len(inspect.getfullargspec(fn).args),
    "signature of a class": lambda x, fn, cls: x * len(inspect.signature(cls).parameters),
    "no field of this Python": lambda x, fn, cls: x * (2 if hasattr(fn, "__type_params__") else 3),
}
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "annotation of the class": lambda fn, cls: cls.__annotations__.update(c=int),
    "no annotations": lambda fn, cls: cls.__annotations__.clear(),
    "other annotations": lambda fn, cls: setattr(cls, "__annotations__", {"d": float, "e": int, "f": str}),
    "annotation of the function": lambda fn, cls: fn.__annotations__.update(b=int),
    "signature": lambda fn, cls: setattr(fn, "__signature__", inspect.signature(lambda p, q, r: 0)),
    "no signature": lambda fn, cls: delattr(fn, "__signature__") if hasattr(fn, "__signature__") else None,
    "wrapped": lambda fn, cls: setattr(fn, "__wrapped__", lambda: 0),
    "init": lambda fn, cls: setattr(cls, "__init__", lambda self, a, b, c, d: None),
    "signature of the class": lambda fn, cls: setattr(cls, "__signature__", inspect.signature(lambda p: 0)),
}


def things() -> tuple[Any, Any]:
    class Holder:
        a: int

        def __init__(self, first: int) -> None: ...

    def function(a: int, b: Any = 1) -> None: ...

    Holder.__annotations__, function.__annotations__ = {"a": int}, {"a": int}
    return function, Holder


@pytest.mark.parametrize("program", PROGRAMS)
def test_change(program: str) -> None:
    read = PROGRAMS[program]
    for first in CHANGES:
        argand.reset()
        compiled = argand.compile(read, backend="eager")
        made = things()
        for change in (lambda fn, cls: None, CHANGES[first], *CHANGES.values()):
            change(*made)
            assert torch.equal(compiled(torch.ones(2), *made), read(torch.ones(2), *made)), first


def test_names_of_a_function_that_gets_attributes() -> None:
    def held() -> float:
        return 1.5

    def program(x: torch.Tensor, fn: Any) -> Any:
        return x * 1, [name for name in dir(fn) if name[0] != "_"]

    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    assert compiled(x, held)[1] == []
    held.tag = 2.5  # type: ignore[attr-defined]
    assert compiled(x, held)[1] == program(x, held)[1] == ["tag"]
