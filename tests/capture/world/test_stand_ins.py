"""What a program can learn of the objects that stand for its values while it is captured: nothing."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand
import sweeps
from capture.agreement import outcome

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")


def raised(value: Any) -> Any:
    raise value


class Plain:
    pass


LOOKS: dict[str, Callable[[Any], Any]] = {
    "call": lambda v: v(2),
    "mapped": lambda v: list(map(v, [1])),
    "reduced": lambda v: functools.reduce(v, [1, 2]),
    "object_repr": lambda v: object.__repr__(v)[:9],
    "object_sizeof": lambda v: object.__sizeof__(v) > 0,
    "object_class": lambda v: object.__getattribute__(v, "__class__").__name__,
    "object_getattribute": lambda v: object.__getattribute__(v, "zz"),
    "object_setattr": lambda v: object.__setattr__(v, "zz", 1),
    "object_delattr": lambda v: object.__delattr__(v, "zz"),
    "object_dir": lambda v: len(object.__dir__(v)),
    "object_eq": lambda v: object.__eq__(v, 1),
    "dir": lambda v: len(dir(v)),
    "delattr": lambda v: delattr(v, "zz"),
    "attribute_name": lambda v: getattr(Plain(), v),
    "next": lambda v: next(v),
    "len": lambda v: len(v),
    "delitem": lambda v: operator.delitem(v, 0),
    "delitem_of_name": lambda v: operator.delitem(v, "a"),
    "keywords": lambda v: dict(**v),
    "join": lambda v: ",".join([v]),
    "raise": raised,
    "negated": lambda v: -v,
    "as_index": lambda v: [1, 2, 3][v],
    "as_range": lambda v: range(v),
    "as_int": lambda v: int(v),
    "root": lambda v: math.sqrt(v),
    "plus_text": lambda v: v + "a",
    "text_plus": lambda v: "a" + v,
    "plus_none": lambda v: v + None,
    "list_plus": lambda v: [1] + v,
    "times_list": lambda v: v * [1, 2],
    "list_times": lambda v: [1, 2] * v,
    "compared": lambda v: "a" < v,
    "formatted": lambda v: "%d" % v,
    "stacked": lambda v: torch.stack([v, 1]),
    "concatenated": lambda v: torch.cat(v),
    "json": lambda v: json.dumps([v]),
}


def values() -> dict[str, Callable[..., Any]]:
    return {
        "array": lambda x, array, number: array,
        "array_made": lambda x, array, number: x.numpy() * 2,
        "array_scalar": lambda x, array, number: (x.numpy() * 2)[0],
        "array_method": lambda x, array, number: array.sum,
        "number": lambda x, array, number: number + 1,
        "size": lambda x, array, number: x.shape,
        "length": lambda x, array, number: x.shape[0],
        "tensor": lambda x, array, number: x * 2,
        "tensor_method": lambda x, array, number: x.sum,
        "generator": lambda x, array, number: (i for i in range(2)),
        "text": lambda x, array, number: str(x),
    }


_NOISE = {("generator", "object_sizeof"), ("text", "object_sizeof")}
"""What CPython itself answers differently each time."""
_TRIED = frozenset(sweeps.chessboard(values(), LOOKS)) - _NOISE


@pytest.mark.parametrize("value", values())
def test_nothing_tells_a_stand_in_from_the_value(value: str) -> None:
    make = values()[value]
    wrong = {}
    for name, look in LOOKS.items():
        if (value, name) not in _TRIED:
            continue

        def f(x: torch.Tensor, array: Any, number: int, look: Callable[[Any], Any] = look) -> Any:
            y = x + 1
            held = make(x, array, number)
            try:
                return y, look(held)
            except Exception as error:
                return y, type(error).__name__, str(error)

        compiled = argand.compile(f, backend="eager", dynamic=True if value in ("number", "size", "length") else None)
        arguments = torch.arange(3.0), np.ones((2, 2)), 3
        wanted, found = outcome(f, *arguments), outcome(compiled, *arguments)
        argand.reset()
        if found != wanted:
            wrong[name] = found, wanted
    assert not wrong


@pytest.mark.parametrize("rows", [2, 3])
def test_size_that_varies_in_json(rows: int) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * 2, json.dumps({"shape": x.shape, "nested": [(x.shape,)]})

    compiled = argand.compile(f, backend="eager", dynamic=True)
    for more in (0, 1):
        x = torch.ones(rows + more, 4)
        assert repr(compiled(x)) == repr(f(x))
