"""Runs a function in argand's interpreter as a plain Python interpreter, and compares with the native run."""

from __future__ import annotations

import copy
import types
from typing import Any

from argand.capture.facts.exceptions import ObservedException
from argand.capture.interp.interpreter import Interpreter, Session
from argand.capture.interp.protocol import NullState

SESSION = Session()


def interpret(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The value of `fn(*args, **kwargs)` by interpretation; raises what it raises."""
    func = fn
    interp = Interpreter(NullState(func if isinstance(func, types.FunctionType) else interpret), SESSION)
    exc = None
    try:
        return interp.call(fn, args, kwargs)
    except ObservedException as observed:
        exc = observed.value
    raise exc


def outcome(run: Any) -> tuple[str, Any]:
    """("value", result) or ("raised", (type, args, context chain))."""
    try:
        return "value", run()
    except Exception as e:
        return "raised", describe(e)


def describe(exc: BaseException | None, depth: int = 0) -> Any:
    """Everything about an exception that a program can compare."""
    if exc is None or depth > 8:
        return None
    children = tuple(describe(e, depth + 1) for e in exc.exceptions) if isinstance(exc, BaseExceptionGroup) else ()
    return (
        type(exc),
        str(exc),
        describe(exc.__cause__, depth + 1),
        describe(exc.__context__, depth + 1),
        exc.__suppress_context__,
        children,
    )


def same(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Assert that interpretation and the native run agree, arguments' mutation included; returns the outcome."""
    native_args = copy.deepcopy((args, kwargs))
    ours_args = copy.deepcopy((args, kwargs))
    expected = outcome(lambda: fn(*native_args[0], **native_args[1]))
    actual = outcome(lambda: interpret(fn, *ours_args[0], **ours_args[1]))
    assert normal(actual) == normal(expected), f"{fn.__name__}: {actual} instead of {expected}"
    assert normal(ours_args) == normal(native_args), f"{fn.__name__} leaves {ours_args} instead of {native_args}"
    return expected


def normal(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A form in which results of two runs compare (NaN equals itself, a container inside itself is its depth)."""
    if isinstance(value, float) and value != value:
        return "nan"
    if id(value) in inside:
        return "cycle", inside.index(id(value))
    if isinstance(value, list | tuple):
        within = (*inside, id(value))
        return type(value).__name__, [normal(item, within) for item in value]
    if isinstance(value, dict):
        within = (*inside, id(value))
        return "dict", [(normal(k, within), normal(v, within)) for k, v in value.items()]
    return value
