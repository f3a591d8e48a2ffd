"""What only capture sees go wrong is never taken for an exception of the program."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from tests.capture.driver.standin_programs import PROGRAMS
from tests.helpers import CountingBackend

import argand
from argand import errors
from argand.capture.interp.interpreter import Interpreter


def outcome(run: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(torch.tensor([1.0, -2.0, 3.0, 4.0]))
        except errors.Unsupported:
            raise
        except Exception as error:
            return type(error), str(error)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)
    return bool(a == b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_looking_into_a_tensor(name: str) -> None:
    program = PROGRAMS[name]
    expected = outcome(program)
    raised: list[str] = []
    stop = argand.events.bus.subscribe(lambda event: raised.append(event.text()), ("frame_returned",))
    try:
        compiled = argand.compile(program, backend="eager")
        for _ in range(3):
            assert same(outcome(compiled), expected)
        backend = CountingBackend()

        whole = argand.compile(
            types.FunctionType(program.__code__, program.__globals__), backend=backend, fullgraph=True
        )
        try:
            found = outcome(whole)
        except errors.Unsupported:
            return
        assert same(found, expected)
        assert backend.graphs or isinstance(expected, tuple)
    finally:
        stop()
    assert raised == []


def test_call_that_seemed_to_raise_breaks_the_graph_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Interpreter.native

    def native(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if fn is divmod:
            raise self.throw(RuntimeError("seen by capture only"))
        return real(self, fn, *args, **kwargs)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + divmod(7, 2)[0]

    monkeypatch.setattr(Interpreter, "native", native)
    seen: list[str] = []
    stop = argand.events.bus.subscribe(lambda event: seen.append(event.name), ("frame_returned", "graph_code"))
    try:
        compiled = argand.compile(program, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [5, 5]
        assert seen == ["frame_returned"]
        for _ in range(2):
            assert compiled(torch.ones(2)).tolist() == [5, 5]
        assert "graph_code" in seen and seen.count("frame_returned") == 1
    finally:
        stop()
    whole = argand.compile(program, backend="eager", fullgraph=True)
    with pytest.raises(errors.Unsupported, match="seemed to raise"):
        whole(torch.ones(2))


def test_program_that_raises_does_so_under_fullgraph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 2:
            raise ValueError("two")
        return x + torch.ones(3)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="two"):
            compiled(torch.ones(2))
        with pytest.raises(RuntimeError, match="must match the size"):
            compiled(torch.ones(4))
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
