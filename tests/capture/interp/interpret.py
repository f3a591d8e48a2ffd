"""Runs a function in argand's interpreter, under the state of a real capture, and compares with the native run."""

from __future__ import annotations

import builtins
import copy
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

import argand
from argand.capture.facts.exceptions import ObservedException
from argand.capture.interp.interpreter import Interpreter, RootExit, Session
from argand.capture.interp.state import CaptureState
from argand.capture.natives import native_warnings
from argand.capture.record.tensors import GraphBuilder
from argand.capture.torch_functions import modes
from argand.capture.torch_functions.overriding import TraceMode
from argand.config import config
from argand.errors import GraphBreak

SESSION = Session()


@contextmanager
def interpreter_of(
    root: types.FunctionType, args: tuple[Any, ...] = (), session: Session | None = None
) -> Iterator[Interpreter]:
    """An interpreter whose root frame is a call of `root`, recording what it does to tensors.

    Arguments:
        args: raw arguments in the order of the root's local variables (see `FrameInfo.args`).
    """
    namespace = getattr(root, "__builtins__", vars(builtins))
    state = CaptureState(root.__code__, root.__globals__, namespace, root.__closure__, args, config, GraphBuilder())
    interp = Interpreter(state, session or Session())
    with modes.restored(), TraceMode(state.graph), native_warnings.heard():
        yield interp


def run_root(
    root: types.FunctionType, *args: Any, break_at: Mapping[int, int | None] = MappingProxyType({})
) -> RootExit:
    """How a call of `root` ends, broken off at the root instructions of these numbers."""
    with interpreter_of(root, args) as interp:
        return interp.run_root(break_at)


def interpret(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The value of `fn(*args, **kwargs)` by interpretation; raises what it raises."""
    with interpreter_of(fn if isinstance(fn, types.FunctionType) else interpret, session=SESSION) as interp:
        try:
            return interp.call(fn, args, kwargs)
        except ObservedException as observed:
            exc = observed.value
    raise exc


class Cases:
    """Functions to interpret, which say so themselves: decorators."""

    def __init__(self) -> None:
        self.agreeing: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.broken: list[tuple[Any, str]] = []

    def case(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """A function that does as CPython does when it is called with these arguments."""

        def add(fn: Any) -> Any:
            self.agreeing.append((fn, args, kwargs))
            return fn

        return add

    def breaks(self, kind: str) -> Callable[[Any], Any]:
        """A function without arguments that ends the graph."""

        def add(fn: Any) -> Any:
            self.broken.append((fn, kind))
            return fn

        return add


def broken(fn: Any, kind: str) -> None:
    """Assert that `fn()` ends the graph, and that it does as CPython does when it is compiled."""
    with pytest.raises(GraphBreak) as caught:
        interpret(fn)
    assert caught.value.reason.kind == kind
    assert outcome(argand.compile(fn, backend="eager")) == outcome(fn)


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
