"""Transformed code that hands the frame back, and frames that are only shown."""

from __future__ import annotations

import types
from typing import Any

import pytest

from argand._core import _C


def _handing_back(*arguments: Any, after: Any = None) -> Any:
    """A callback whose entry runs the frame's own code with these arguments."""
    given = list(arguments)

    def callback(info: _C.FrameInfo) -> Any:
        if info.code is not original.__code__:
            return _C.SKIP
        code = compile("def t(a, b): return run_original(given, after)", "<t>", "exec").co_consts[0]
        info.globals.update(run_original=_C.run_original, given=given, after=after)
        return _C.Entry(code, None, None)

    return callback


def original(a: int, b: int) -> float:
    return a / b


def test_frame_runs_with_the_arguments_given() -> None:
    told: list[bool] = []
    assert _C.run_with_callback(_handing_back(6, 3, after=told.append), None, original, (1, 1)) == 2.0
    with pytest.raises(ZeroDivisionError):
        _C.run_with_callback(_handing_back(6, 0, after=told.append), None, original, (1, 1))
    assert told == [True, False]


def test_wrong_arguments_are_an_error() -> None:
    with pytest.raises(SystemError, match="not the arguments of the frame"):
        _C.run_with_callback(_handing_back(6), None, original, (1, 1))
    with pytest.raises(TypeError):
        _C.run_original((), None)  # type: ignore[arg-type]


def test_shown_frame_has_no_caller() -> None:
    frame = _C.new_frame(original.__code__, {"__name__": "shown"})
    assert isinstance(frame, types.FrameType) and frame.f_back is None and frame.f_globals == {"__name__": "shown"}
    with pytest.raises(TypeError):
        _C.new_frame(None, {})  # type: ignore[arg-type]
