"""Errors that only the values decide reach the `try` or `with` in which the program wrote the call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import CountingBackend, check

import argand

_X = torch.arange(6.0).reshape(2, 3)
_OUT = torch.tensor([0, 7])
_OPS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
    "embedding": (lambda x, i: F.embedding(i, x), _OUT, torch.tensor([0, 1])),
    "gather": (lambda x, i: x.gather(0, i), torch.full((2, 3), 9), torch.zeros(2, 3, dtype=torch.long)),
    "index_select": (lambda x, i: x.index_select(0, i), _OUT, torch.tensor([1, 0])),
    "index": (lambda x, i: x[i], _OUT, torch.tensor([1, 0])),
    "setitem": (lambda x, i: (x.clone().__setitem__(i, 3.0), x)[1], _OUT, torch.tensor([1, 0])),
    "take": (lambda x, i: torch.take(x, i), torch.tensor([99]), torch.tensor([1])),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), torch.full((2, 3), 9), torch.zeros(2, 3, dtype=torch.long)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), _OUT, torch.tensor([1, 2])),
    "one_hot": (lambda x, i: F.one_hot(i, 3), _OUT, torch.tensor([1, 2])),
    "inv": (lambda x, i: torch.linalg.inv(i), torch.zeros(2, 2), torch.eye(2)),
    "cholesky": (lambda x, i: torch.linalg.cholesky(i), -torch.eye(2), torch.eye(2)),
    "solve": (lambda x, i: torch.linalg.solve(i, x), torch.zeros(2, 2), torch.eye(2)),
    "assert_async": (lambda x, i: (torch._assert_async(i), x)[1], torch.tensor(0), torch.tensor(1)),
    "floor_divide": (lambda x, i: i // (i - 1), torch.tensor([1]), torch.tensor([3])),
}  # fmt: skip


@pytest.mark.parametrize("good", [False, True], ids=["raises", "fine"])
@pytest.mark.parametrize("name", _OPS)
def test_error_on_data_is_caught_by_the_try_around_the_call(name: str, good: bool) -> None:
    op, bad, fine = _OPS[name]

    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = x * 2
        try:
            y = y.sum() + op(y, i)
            caught = "no"
        except (IndexError, RuntimeError) as e:
            caught = type(e).__name__
        return y + 1, caught

    check(program, _X.clone(), (fine if good else bad).clone())


def _lookup(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding(i, table) + 1


@contextlib.contextmanager
def _noting(log: list[str]) -> Iterator[None]:
    try:
        yield
    except IndexError:
        log.append("seen")
        raise
    finally:
        log.append("left")


def test_error_on_data_inside_a_called_function_is_caught_by_the_caller() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        try:
            return _lookup(x, i)
        except IndexError:
            return x - 1

    check(program, _X.clone(), _OUT)
    check(program, _X.clone(), torch.tensor([1]))


def test_error_on_data_under_suppress_and_the_programs_own_managers() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, log: list[str]) -> Any:
        y = x + 1
        with contextlib.suppress(IndexError):
            y = x[i]
        try:
            with _noting(log):
                y = y + _lookup(x, i)
        except IndexError:
            log.append("caught")
        return y

    check(program, _X.clone(), _OUT, [])
    check(program, _X.clone(), torch.tensor([1, 0]), [])


class _Setting:
    value = 1


def test_a_finally_that_restores_stays_in_the_graph() -> None:
    """On an error nothing of what it undoes was done yet: the setting is as before, as in eager."""

    def program(x: torch.Tensor, i: torch.Tensor, setting: _Setting) -> torch.Tensor:
        before = setting.value
        setting.value = 2
        try:
            return x.index_select(0, i) * setting.value
        finally:
            setting.value = before

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    setting = _Setting()
    assert torch.equal(compiled(_X.clone(), torch.tensor([0]), setting), program(_X, torch.tensor([0]), setting))
    assert len(backend.graphs) == 1
    with pytest.raises((IndexError, RuntimeError)):
        compiled(_X.clone(), _OUT, setting)
    assert setting.value == 1


def test_error_on_data_in_a_loop() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        seen = []
        for step in range(3):
            try:
                seen.append(x[i + step].sum())
            except IndexError:
                seen.append(x.sum() * 0)
        return torch.stack(seen)

    check(program, torch.arange(4.0), torch.tensor([0, 2]))


def test_try_that_cannot_catch_what_the_data_raises_stays_one_graph() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        try:
            with torch.no_grad():
                y = F.embedding(i, x)
        except (KeyError, AttributeError):
            y = x
        except NotImplementedError:
            y = -x
        return y + 1

    backend = CountingBackend()
    got = argand.compile(program, backend=backend, fullgraph=True)(_X, torch.tensor([1]))
    assert torch.equal(got, _X[1:] + 1) and len(backend.graphs) == 1


@pytest.mark.parametrize("key", [None, (None, slice(None)), slice(0, 1), Ellipsis])
def test_a_tensor_that_is_assigned_to_a_view_of_itself(key: object) -> None:
    def f(x: torch.Tensor) -> object:
        try:
            x[key] = x
        except RuntimeError as error:
            return x + 1, str(error)
        return x - 1

    compiled = argand.compile(f, backend="eager")
    for size in (1, 1, 3):
        want, got = f(torch.ones(size)), compiled(torch.ones(size))
        assert repr(want) == repr(got)
