"""A graph that raises or writes inside blocks: modes are left, `with` and `try` of the program hear of the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.capture.output.test_rerun import _BAD, _GOOD, _X, Manager, _run, noting
from tests.helpers import assert_same, collected

import argand

# ---------------------------------------------------------------------- writes to inputs: the graph ends before the operation


def write_then_try(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    x.add_(1)
    log.append("written")
    try:
        y = F.embedding(i, x)
    except IndexError:
        log.append("caught")
        y = x
    return y * 2


def write_in_try(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    try:
        x.add_(1)
        log.append("written")
        y = x[i]
        x.mul_(2)
    except IndexError:
        y = -x
    finally:
        log.append("finally")
    return y * 2


def write_behind_try(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    log.append("first")
    try:
        y = x.index_select(0, i)
    except (IndexError, RuntimeError):
        y = x + 1
    x.mul_(2)
    log.append("second")
    return y + x.sum()


def write_to_view_in_manager(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    row = x.t()[1]
    with Manager(log):
        row.fill_(7)
        log.append("written")
        return x[i]


def write_under_finally(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    with torch.no_grad(), noting(log):
        x.mul_(2)
        log.append("written")
        y = x[i]
        x.add_(1)
    return y


def _same_from_a_caller(program: Any) -> None:
    def caller(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
        return work(x, i, log)

    compiled = argand.compile(program, backend="eager")
    for i in (_GOOD, _BAD, _GOOD, _BAD, _BAD):
        want, want_lines = _run(caller, program, i, __file__)
        got, got_lines = _run(caller, compiled, i, __file__)
        assert_same(want, got)
        assert got_lines == want_lines


_WRITERS = (write_then_try, write_in_try, write_behind_try, write_to_view_in_manager, write_under_finally)


@pytest.mark.parametrize("program", _WRITERS, ids=lambda fn: fn.__name__)
def test_graph_that_writes_to_an_input_is_not_run_twice(program: Any) -> None:
    _same_from_a_caller(program)


_calls: list[str] = []


@argand.allow_in_graph
def _noted(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "meta":
        _calls.append("noted")
    return x.clone()


def test_function_with_unknown_effects_is_not_run_twice() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = _noted(x)
        try:
            return y[i]
        except IndexError:
            return y

    compiled = argand.compile(program, backend="eager")
    for i in (_GOOD, _BAD):
        _calls.clear()
        assert_same(program(_X, i), compiled(_X, i))
        assert _calls == ["noted", "noted"]


# ---------------------------------------------------------------------- blocks entered before the graph


def write_in_entered_no_grad(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    with torch.no_grad():
        y = x + 1
        argand.graph_break()
        x.mul_(2)
        return x[i] + y


def write_after_entered_no_grad(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        y = x @ x.t()
        argand.graph_break()
        x.mul_(2)
    return x[i] + y.sum()


def entered_in_handler(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    try:
        raise KeyError("first")
    except KeyError:
        with torch.no_grad():
            argand.graph_break()
            log.append(torch.is_grad_enabled())
            return x[i]


def entered_in_loop(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
    for n in range(3):
        with Manager(log), torch.no_grad():
            argand.graph_break()
            log.append(n)
            x = x + x[i - 2 + n].sum()
    return x


_ENTERED = (write_in_entered_no_grad, write_after_entered_no_grad, entered_in_handler, entered_in_loop)


@pytest.mark.parametrize("program", _ENTERED, ids=lambda fn: fn.__name__)
def test_modes_entered_before_the_graph_are_left(program: Any) -> None:
    _same_from_a_caller(program)


def test_interrupt_of_a_graph_is_told_to_the_blocks_around_it() -> None:
    interrupted = False

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            if interrupted and len(gm.graph.find_nodes(op="call_method", target="add_")):
                raise KeyboardInterrupt
            return gm.forward(*args)

        return run

    log: list[Any] = []

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            try:
                argand.graph_break()
                x.add_(1)
                return x * y
            except KeyboardInterrupt:
                log.append("caught")
                raise
            finally:
                log.append("finally")

    compiled = argand.compile(program, backend=backend)
    compiled(_X.clone(), _X)
    log.clear()
    interrupted = True
    with pytest.raises(KeyboardInterrupt):
        compiled(_X.clone(), _X)
    assert log == ["caught", "finally"] and torch.is_grad_enabled()


# ---------------------------------------------------------------------- results that nobody needs


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_error_of_an_operation_whose_result_is_not_used_is_caught(backend: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        try:
            x.sin()[i]
            torch.linalg.inv_ex(x[:, :2] * 1, check_errors=True)
        except IndexError:
            return x - 1
        return x + 1

    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for i in (_GOOD, _BAD, _GOOD):
        assert_same(program(_X, i), compiled(_X, i))


def test_error_of_an_operation_whose_result_is_not_used() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        F.embedding(i, x)
        return x + 1

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    assert_same(program(_X, _GOOD), compiled(_X, _GOOD))
    with pytest.raises(IndexError):
        compiled(_X, _BAD)


def test_error_behind_a_try_that_is_over_leaves_the_with_around_both() -> None:
    """Fuzzer, seed 91123639: the resume function begins inside the `try`, and its graph raises behind it."""

    @argand.disable
    def checked(value: int) -> int:
        return value

    def program(x: torch.Tensor, n: int, log: list[str]) -> torch.Tensor:
        with torch.no_grad():
            try:
                try:
                    checked(n)
                except KeyError:
                    log.append("inner")
                    raise
            except ValueError:
                log.append("outer")
            y = x[torch.tensor([0, n])]
        return y + 1

    compiled = argand.compile(program, backend="eager")
    for n in (1, 7, 1, 9):
        for fn in (program, compiled):
            log: list[str] = []
            if n == 1:
                assert fn(torch.ones(2), n, log).tolist() == [2, 2]
            else:
                with pytest.raises(IndexError):
                    fn(torch.ones(2), n, log)
            assert torch.is_grad_enabled() and log == []


def test_states_of_generators_are_saved_where_numbers_are_drawn():
    x = torch.randn(2, 5, 8)
    lstm = torch.nn.LSTM(8, 8, 2)
    attention = torch.nn.MultiheadAttention(8, 2)
    cases: list[tuple[Callable[..., Any], bool]] = [
        (lambda q: F.scaled_dot_product_attention(q, q, q), False),
        (lambda q: F.scaled_dot_product_attention(q, q, q, None, 0.5), True),
        (lambda q: attention(q, q, q)[0], False),
        (lstm, False),
        (torch.nn.LSTM(8, 8, 2, dropout=0.5), True),
        (torch.nn.LSTM(8, 8, 2, dropout=0.5).eval(), False),
    ]
    for function, draws in cases:
        with collected("bytecode") as events:
            argand.compile(function, backend="eager")(x)
        assert any("random_states" in event.text() for event in events) == draws
