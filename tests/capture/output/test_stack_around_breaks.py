"""Who asks who called it, after a graph break: the rest of a function is on the stack in the place of the function."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

LOG = logging.getLogger(__name__)


def callers() -> list[tuple[str, int]]:
    frame: types.FrameType | None = sys._getframe(1)
    names: list[tuple[str, int]] = []
    while frame is not None and frame.f_code is not said_by.__code__:
        names.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return names


def by_frames(said: list[Any]) -> None:
    said.append(callers())


def by_warning(said: list[Any]) -> None:
    warnings.warn("careful", stacklevel=3)


def by_log(said: list[Any]) -> None:
    LOG.warning("heard", stacklevel=3)


def by_inspection(said: list[Any]) -> None:
    said.append([(info.function, info.lineno) for info in inspect.stack()[1:4]])


def by_traceback(said: list[Any]) -> None:
    said.append([(entry.name, entry.lineno) for entry in traceback.extract_stack()[-4:-1]])


def broken_twice(x: torch.Tensor, say: Callable[[list[Any]], None], said: list[Any]) -> torch.Tensor:
    say(said)
    y = x + 1
    argand.graph_break()
    say(said)
    z = y * 2
    argand.graph_break()
    say(said)
    return z


def in_a_loop(x: torch.Tensor, say: Callable[[list[Any]], None], said: list[Any]) -> torch.Tensor:
    for i in range(3):
        x = x + i
        argand.graph_break()
        say(said)
    return broken_twice(x, say, said)


def in_a_handler(x: torch.Tensor, say: Callable[[list[Any]], None], said: list[Any]) -> torch.Tensor:
    try:
        x = x + 1
        argand.graph_break()
        say(said)
        raise ValueError(x)
    except ValueError as error:
        argand.graph_break()
        say(said)
        frames = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
        said.append(frames)
    finally:
        x = x * 2
        argand.graph_break()
        say(said)
    return x


def said_by(fn: Callable[..., Any], say: Callable[[list[Any]], None]) -> list[Any]:
    said: list[Any] = []
    fn(torch.ones(2), say, said)
    return said


@pytest.mark.parametrize(
    ("fn", "say"),
    [
        (broken_twice, by_frames),
        (broken_twice, by_inspection),
        (in_a_loop, by_frames),
        (in_a_loop, by_warning),
        (in_a_handler, by_log),
        (in_a_handler, by_traceback),
    ],
)
def test_who_called_is_as_eager_says(fn: Callable[..., Any], say: Callable[..., Any], caplog: Any) -> None:
    def heard(function: Callable[..., Any]) -> list[Any]:
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said = said_by(function, say)
        own = [(one.filename, one.lineno) for one in warned if str(one.message) == "careful"]
        return [*said, *own, *((r.funcName, r.lineno) for r in caplog.records if r.name == __name__)]

    compiled = argand.compile(fn, backend="eager")
    want = heard(fn)
    assert len(want) >= 3
    for _ in range(2):
        assert heard(compiled) == want
