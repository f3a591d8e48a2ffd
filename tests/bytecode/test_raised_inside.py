"""An error while a resume function is compiled leaves the blocks that it goes on in, as an error of the program's would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import argand
from argand.errors import BackendCompilerFailed

LEFT: list[str] = []


@contextmanager
def noted(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        LEFT.append(f"{name} {type(error).__name__}")
        raise
    LEFT.append(name)


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
        argand.graph_break()
        z = y + 1
    return z


def finally_block(x: torch.Tensor) -> torch.Tensor:
    try:
        y = x * 2
        argand.graph_break()
        return y + 1
    finally:
        LEFT.append("finally")


def own_contexts(x: torch.Tensor) -> torch.Tensor:
    with noted("outer"), noted("inner"):
        y = x * 2
        argand.graph_break()
        y = y + 1
    return y


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        with noted(f"round {i}"):
            x = x * 2
            argand.graph_break()
            x = x + 1
    return x


def handler(x: torch.Tensor) -> torch.Tensor:
    try:
        raise KeyError("a")
    except KeyError:
        x = x * 2
        argand.graph_break()
        x = x + 1
    finally:
        LEFT.append("finally")
    return x


def with_a_closure(x: torch.Tensor) -> torch.Tensor:
    y = x * 2

    def inner() -> torch.Tensor:
        return y + 1

    with noted("closure"):
        argand.graph_break()
        y = inner() * 3
    return y


PROGRAMS = {
    without_gradients: [],
    finally_block: ["finally"],
    own_contexts: ["inner {}", "outer {}"],
    in_a_loop: ["round 0 {}"],
    handler: ["finally"],
    with_a_closure: ["closure {}"],
}


class Failing:
    """A backend that raises at its second graph."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.graphs = error, 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        if self.graphs == 2:
            raise self.error
        return graph.forward


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    argand.reset()
    LEFT.clear()
    yield
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("error", [ValueError("a backend's"), KeyboardInterrupt()], ids=["failure", "interrupt"])
@pytest.mark.parametrize("program", list(PROGRAMS), ids=lambda program: program.__name__)
def test_blocks_are_left(program: Callable[..., torch.Tensor], error: BaseException) -> None:
    x = torch.randn(3)
    expected_type = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else BackendCompilerFailed
    compiled = argand.compile(program, backend=Failing(error))
    with pytest.raises(expected_type) as raised:
        compiled(x)
    assert [note.format(expected_type.__name__) for note in PROGRAMS[program]] == LEFT
    lines = [entry.frame.code.name for entry in raised.traceback]
    assert program.__name__ in lines
    if expected_type is BackendCompilerFailed:
        assert raised.value.__cause__ is error
    # The next call compiles what is missing.
    LEFT.clear()
    result, noted_then = compiled(x), list(LEFT)
    LEFT.clear()
    assert torch.equal(result, program(x))
    assert noted_then == LEFT


def test_a_lock_is_released_and_an_error_that_is_caught_is_caught() -> None:
    lock = threading.Lock()

    def guarded(x: torch.Tensor) -> torch.Tensor:
        try:
            with lock:
                y = x * 2
                argand.graph_break()
                y = y + 1
        except BackendCompilerFailed:
            return x
        return y

    x = torch.randn(3)
    assert argand.compile(guarded, backend=Failing(ValueError("a backend's")))(x) is x
    assert not lock.locked()


def test_a_forbidden_break_leaves_its_blocks() -> None:
    def strict(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            argand.graph_break()
            with noted("inner"), argand.error_on_graph_break(True):
                y = y + 1
                argand.graph_break()
        return y

    with pytest.raises(argand.errors.Unsupported):
        argand.compile(strict, backend="eager")(torch.randn(3))
    assert LEFT == []  # it had not begun
    assert argand.compile(lambda x: argand.graph_break() or x + 1, backend="eager")(torch.zeros(2)).sum() == 2
