"""Tuples of classes that Python cannot make: their elements, fields and unpacking, from outside and from a call."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

DAYS = (datetime.date(2021, 2, 3).isocalendar(), datetime.date(2024, 12, 30).isocalendar())
TUPLES: dict[str, tuple[Any, Any]] = {
    "calendar": DAYS,
    "time": (time.gmtime(0), time.gmtime(10**9)),
    "file": (os.stat(os.devnull), os.stat(os.curdir)),
    "return type": tuple(torch.return_types.max((torch.tensor(k), torch.tensor(0))) for k in (1.0, 2.0)),
}


def unpacked(x: torch.Tensor, t: Any) -> Any:
    first, *rest = t
    return x * first, rest


def read(x: torch.Tensor, t: Any) -> Any:
    return x * t[0], [item for item in t], t[1:], type(t).__name__, t == tuple(t)


def returned(x: torch.Tensor, t: Any) -> Any:
    return x * 1, t, {"t": t}


def from_a_call(x: torch.Tensor, t: Any) -> Any:
    first, *rest = datetime.datetime(2021, 2, 3, 4).isocalendar()
    return x * first, rest


@pytest.mark.parametrize("program", [unpacked, read, returned, from_a_call])
@pytest.mark.parametrize("name", TUPLES)
def test_is_what_eager_reads(program: Callable[..., Any], name: str) -> None:
    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    for given in (*TUPLES[name], TUPLES[name][0]):
        mine, eager = compiled(x, given), program(x, given)
        assert repr(mine) == repr(eager)
        assert [type(item) for item in mine] == [type(item) for item in eager]


def test_unpacking_one_is_no_failure_of_argand(recwarn: pytest.WarningsRecorder) -> None:
    argand.compile(unpacked, backend="eager")(torch.ones(2), DAYS[0])
    assert not [warning for warning in recwarn if "inside argand" in str(warning.message)]
