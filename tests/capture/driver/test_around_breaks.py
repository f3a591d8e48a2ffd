"""Differences from eager around graph breaks that were found once, each by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand import errors
from helpers import check

X = torch.arange(1.0, 4.0)


def _numbers(log: list[Any], n: int):
    try:
        yield from range(n)
    finally:
        log.append("closed")


def _deleted(x, log):
    g = _numbers(log, 3)
    next(g)
    del g
    log.append("after")
    return x * 2


def _left_by_break(x, log):
    for i in _numbers(log, 3):
        if i == 1:
            break
    log.append("after")
    return x * 2


def _local_of_a_callee(x, log):
    def inner():
        g = _numbers(log, 3)
        return next(g)

    v = inner()
    log.append("after")
    return x * 2 + v


def _alive_at_the_end(x, log):
    g = _numbers(log, 3)
    next(g)
    return x * 2


@pytest.mark.parametrize("fn", [_deleted, _left_by_break, _local_of_a_callee, _alive_at_the_end])
def test_abandoned_generators_run_their_finally_block(fn) -> None:
    want: list[Any] = []
    got: list[Any] = []
    fn(X, want)
    argand.compile(fn, backend="eager")(X, got)
    assert got == want


def test_the_callers_exception_is_seen() -> None:
    def f(x):
        return x + 1, sys.exc_info()[0]

    compiled = argand.compile(f, backend="eager")
    assert compiled(X)[1] is None
    try:
        raise KeyError("outer")
    except KeyError:
        assert compiled(X)[1] is KeyError
    assert compiled(X)[1] is None


def test_an_exception_from_outside_is_not_touched_by_capture() -> None:
    def f(x, error):
        try:
            raise error
        except ValueError:
            return x * 2

    error = ValueError("kept")
    argand.compile(f, backend="eager")(X, error)
    assert error.__context__ is None
    lines = 0
    traceback = error.__traceback__
    while traceback is not None:
        assert traceback.tb_frame.f_code.co_name == "f"
        lines += 1
        traceback = traceback.tb_next
    assert lines == 1


def test_comprehension_appends_once() -> None:
    @argand.disable
    def real(i):
        return i

    check(
        lambda x: ([real(i) for i in range(3)], {real(i) for i in range(3)}, {i: real(i) for i in range(3)}, x + 1), X
    )


def test_autocast_nesting_is_as_before() -> None:
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
            argand.graph_break()
            return y + x @ x.t()

    def nesting() -> int:
        depth = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        return depth

    before = nesting()
    argand.compile(f, backend="eager")(torch.ones(2, 2))
    assert nesting() == before


def test_inference_mode_is_left_when_capture_restarts() -> None:
    def f(x):
        with torch.inference_mode():
            y = x * 2
            argand.graph_break()
        return y + 1

    check(f, X)
    assert not torch.is_inference_mode_enabled()


def test_false_branch_at_the_end_of_a_loop() -> None:
    def f(x, log):
        for _ in range(2):
            if x.sum() > 1e9:
                log.append("taken")
        return x + 1

    log: list[Any] = []
    argand.compile(f, backend="eager")(X, log)
    assert log == []


def test_fullgraph_names_the_line_in_a_loop() -> None:
    def f(x):
        for _ in range(2):
            x = x + 1
            argand.graph_break()
        return x

    with pytest.raises(errors.Unsupported, match=r"argand\.graph_break\(\)"):
        argand.compile(f, backend="eager", fullgraph=True)(X)


def _before(x: torch.Tensor) -> list[object]:
    told = [torch.compiler.is_compiling()]
    argand.graph_break()
    return [*told, torch.compiler.is_compiling(), x + 1]


def _behind(x: torch.Tensor) -> list[object]:
    told = [torch.compiler.is_compiling()]
    x = x + 1
    argand.graph_break()
    return [*told, torch.compiler.is_compiling(), x]


def _in_a_loop(x: torch.Tensor) -> list[object]:
    told: list[object] = [torch.compiler.is_compiling()]
    for _ in range(3):
        argand.graph_break()
        x = x + 1
    return [*told, torch.compiler.is_compiling(), x]


@pytest.mark.parametrize("function", [_before, _behind, _in_a_loop])
def test_parts_of_a_call_are_told_alike_that_it_is_compiled(function: Callable[[torch.Tensor], list[object]]) -> None:
    """Also those without an operation: what libraries make before a break, and behind it, meets."""
    compiled = argand.compile(function, backend="eager")
    for _ in range(2):
        *told, x = compiled(torch.ones(2))
        assert told == [True, True] and isinstance(x, torch.Tensor)


def _needs_what_is_left_out(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    if mask is None and not torch.compiler.is_compiling():
        mask = torch.ones(2)
    return x * mask[:, None]  # type: ignore[index]


def _needs_it_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    argand.graph_break()
    return _needs_what_is_left_out(x + 1) + 1


def _refuses_to_be_compiled(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        raise RuntimeError("not here")
    return x + 1


@pytest.mark.parametrize("function", [_needs_what_is_left_out, _needs_it_behind_a_break, _refuses_to_be_compiled])
def test_who_raises_when_told_of_compiling_is_not_told(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A library that leaves out a mask then, and needs it, had an error that eager does not have, from the second call."""
    compiled = argand.compile(function, backend="eager")
    for size in (2, 3, 4):
        x = torch.randn(2, size)
        assert torch.equal(compiled(x), function(x))


LOCK = threading.Lock()


class Held:
    """What is handed on by one way while compiling and by another else, as transformers does."""

    def __init__(self) -> None:
        self.compiling, self.told, self.own = False, [""], [""]

    def put(self, value: list[str]) -> None:
        if torch.compiler.is_compiling():
            self.told, self.compiling = value, True
        else:
            self.own = value


def nested(x: torch.Tensor, names: list[str], held: Held) -> tuple[torch.Tensor, list[str]]:
    mine: list[str] = []
    if names[0] == "last":
        with LOCK:  # breaks the graph before it is asked whether the program is compiled
            pass
    held.put(mine)
    if len(names) > 1:
        return nested(x, names[1:], held)
    (held.told if held.compiling else held.own).append("sin")
    return x.sin(), mine


def test_calls_within_one_that_was_told_that_it_is_compiled_are_told_so() -> None:
    """Regression: those that recorded nothing up to a break were left to Python, and what a model collected was lost."""
    x = torch.randn(3)
    got = argand.compile(nested, backend="eager")(x, ["a", "b", "c", "d", "last"], Held())
    assert got[1] == ["sin"]
