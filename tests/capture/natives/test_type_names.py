"""CPython's messages name types of C code by their dotted name, and so do those of captured code."""

from __future__ import annotations

import collections
import decimal
import functools
import operator
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand
from argand._core import _C


class Target:
    def method(self) -> None:
        pass


KEPT = Target()

OBJECTS: dict[str, Any] = {
    "functools.partial": functools.partial(max, 1),
    "decimal.Decimal": decimal.Decimal(1),
    "weakref": weakref.ref(KEPT),
    "numpy.float64": np.float64(1.0),
    "lock": threading.Lock(),
    "deque": collections.deque([1]),
    "itemgetter": operator.itemgetter(0),
    "namespace": types.SimpleNamespace(a=1),
    "instance": KEPT,
    "bound method": KEPT.method,
    "bound method of C": [].append,
}


def absent(x: torch.Tensor, o: Any) -> Any:
    return x, o.absent


def called(x: torch.Tensor, o: Any) -> Any:
    return x, o(x, 1, 2)


def walked(x: torch.Tensor, o: Any) -> Any:
    return x, [v for v in o]


def indexed(x: torch.Tensor, o: Any) -> Any:
    return x, o["k"]


def written(x: torch.Tensor, o: Any) -> Any:
    o["k"] = 1
    return x


def unpacked(x: torch.Tensor, o: Any) -> Any:
    a, b = o
    return x, a, b


def searched(x: torch.Tensor, o: Any) -> Any:
    return x, 3 in o


def starred(x: torch.Tensor, o: Any) -> Any:
    return x, [*o]


def spread(x: torch.Tensor, o: Any) -> Any:
    return x, (lambda **k: k)(**o)


def merged(x: torch.Tensor, o: Any) -> Any:
    return x, {**o}


def advanced(x: torch.Tensor, o: Any) -> Any:
    return x, next(o)


def outcome(fn: Callable[..., Any], o: Any) -> Any:
    try:
        return repr(fn(torch.ones(2), o))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize(
    "fn", [absent, called, walked, indexed, written, unpacked, searched, starred, spread, merged, advanced]
)
def test_message_names_the_type_as_cpython_does(fn: Callable[..., Any], name: str) -> None:
    compiled = argand.compile(fn, backend="eager")
    assert outcome(compiled, OBJECTS[name]) == outcome(fn, OBJECTS[name])


def test_type_name() -> None:
    assert _C.type_name(int) == "int"
    assert _C.type_name(functools.partial) == "functools.partial"
    assert _C.type_name(Target) == "Target"
    with pytest.raises(TypeError, match="takes a type"):
        _C.type_name(3)  # type: ignore[arg-type]
