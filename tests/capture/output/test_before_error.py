"""A graph that writes to its inputs and then raises: what the program did before the operation that failed is done."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import CountingBackend, assert_same

import argand

_BAD = torch.tensor([0, 7])
_GOOD = torch.tensor([0, 1])
_count = 0


def after_write(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    log.append("before")
    y = x[i]
    log.append("after")
    return y


def before_write(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    log.append("before")
    y = x.index_select(0, i)
    x.add_(1)
    log.append("after")
    return y


def several(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    y = F.embedding(i - i, x)
    for step in range(4):
        log.append(step)
        box.step = step
        y = y + F.embedding((i * step).clamp(max=step + 2), x)
    return y


def _attribute_and_call(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> torch.Tensor:
    box.calls += 1
    log.append(box.calls)
    box.calls += 1
    y = x.gather(0, i.reshape(2, 1))
    log.append("not reached")
    del box.gone
    return y


def in_callee(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.mul_(2)
    kept = {"a": [1, (2, x)]}
    box.kept = kept
    kept["a"].append(3)
    with torch.no_grad():
        y = _attribute_and_call(x, i, log, box)
    kept["a"].append(4)
    return y


def of_globals(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    global _count
    x.add_(1)
    _count += 1
    y = x[i]
    _count += 1
    return y


def of_cells(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    box.set_number(5)
    y = x[i]
    box.set_number(6)
    return y


def inputs_in_effects(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    log.append(x)
    box.last = i
    x.tag = "told"
    x.add_(1)
    return x[i]


def under_matching_nothing(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    try:
        log.append("before")
        return x[i]
    except KeyError:
        log.append("never")
        raise


@contextlib.contextmanager
def _plain(log: list[Any]) -> Iterator[None]:
    log.append("begin")
    yield
    log.append("end")


def in_manager_that_is_not_told(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    with _plain(log):
        return x[i]


_ONE_GRAPH = (
    after_write,
    before_write,
    several,
    in_callee,
    of_globals,
    of_cells,
    inputs_in_effects,
    under_matching_nothing,
    in_manager_that_is_not_told,
)


def computed_after_write(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    log.append(x * 2)
    y = x[i]
    log.append("after")
    return y


def computed_before_write(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    log.append(x * 2)
    y = x[i]
    x.add_(1)
    log.append(y)
    return y


def after_a_break(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    y = x + 1
    argand.graph_break()
    box.calls = 5
    x.add_(1)
    log.append("before")
    return y + x[i].sum()


def after_a_break_inside_a_block(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    with torch.no_grad():
        y = x + 1
        argand.graph_break()
        x.add_(1)
        log.append("before")
        return y + x[i].sum()


_SPLIT = (computed_after_write, computed_before_write, after_a_break, after_a_break_inside_a_block)


def _box() -> types.SimpleNamespace:
    number = 0

    def set_number(value: int) -> None:
        nonlocal number
        number = value

    return types.SimpleNamespace(calls=1, gone=1, set_number=set_number, number=lambda: number)


def _outcome(fn: Any, i: torch.Tensor, caught: bool = False) -> Any:
    """What is left when `fn` has run."""
    global _count
    _count = 0
    x, log, box = torch.arange(6.0).reshape(2, 3), [], _box()
    try:
        result = fn(x, i.clone(), log, box)
    except (IndexError, RuntimeError):
        log.append("raised")
        result = None
    number = box.number()
    del box.set_number, box.number
    assert torch.is_grad_enabled()
    return copy.deepcopy((x, result, log, vars(box), number, _count, x.__dict__))


@pytest.mark.parametrize("program", [*_ONE_GRAPH, *_SPLIT], ids=lambda fn: fn.__name__)
def test_effects_before_the_operation_that_failed_are_done(program: Any) -> None:
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    for i in (_GOOD, _BAD, _GOOD, _BAD):
        assert_same(_outcome(program, i), _outcome(compiled, i))
    assert program in _SPLIT or len(backend.graphs) == 1


@pytest.mark.parametrize("program", _ONE_GRAPH, ids=lambda fn: fn.__name__)
def test_effects_before_the_operation_that_failed_are_done_with_fullgraph(program: Any) -> None:
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for i in (_BAD, _GOOD, _BAD):
        assert_same(_outcome(program, i), _outcome(compiled, i))


def test_effects_of_a_compiled_function_that_fails_are_done_before_its_callers_handler() -> None:
    compiled = argand.compile(after_write, backend="eager")

    def caller(work: Any, i: torch.Tensor) -> Any:
        x, log = torch.arange(6.0).reshape(2, 3), []
        try:
            return work(x, i, log, None), log, x
        except IndexError:
            log.append("caught")
            return None, log, x

    for i in (_GOOD, _BAD, _BAD):
        assert_same(caller(after_write, i), caller(compiled, i))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_effects_before_the_first_operation_that_may_fail_are_done_whatever_the_backend(backend: str) -> None:
    compiled = argand.compile(after_write, backend=backend)
    for i in (_GOOD, _BAD):
        assert_same(_outcome(after_write, i)[2:], _outcome(compiled, i)[2:])


def test_static_cache_with_bookkeeping_stays_one_graph() -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(8, 4)
            self.seen = 0
            self.register_buffer("keys", torch.zeros(6, 4))

        def forward(self, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            for layer in range(3):
                self.seen += 1
                y = self.table(tokens + layer)
                self.keys.index_copy_(0, at, y)
                y = self.keys[at + layer].cumsum(0)
            return y

    backend = CountingBackend()
    torch.manual_seed(0)
    want = Cached()
    got = copy.deepcopy(want)
    compiled = argand.compile(got, backend=backend, dynamic=True)
    with torch.no_grad():
        for tokens, at in (([0, 1], [0, 1]), ([2, 3], [2, 3])):
            args = torch.tensor(tokens), torch.tensor(at)
            assert_same(want(*args), compiled(*args))
        for tokens, at in (([6, 7], [0, 1]), ([0, 1], [3, 4])):
            args = torch.tensor(tokens), torch.tensor(at)
            with pytest.raises(IndexError):
                want(*args)
            with pytest.raises(IndexError):
                compiled(*args)
            assert want.seen == got.seen
    assert len(backend.graphs) <= 2


# ---------------------------------------------------------------------- where the program would be told of the error


def own_finally(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    try:
        log.append("before")
        return x[i]
    finally:
        log.append("finally")


@contextlib.contextmanager
def _noting(log: list[Any]) -> Iterator[None]:
    log.append("begin")
    try:
        yield
    finally:
        log.append("end")


def own_manager(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    x.add_(1)
    with _noting(log):
        return x[i]


def _generator(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Iterator[Any]:
    try:
        yield x.add_(1)
        yield x[i]
    finally:
        log.append("finally")


def own_generator(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    total = torch.zeros(())
    for value in _generator(x, i, log):
        total = total + value.sum()
    return total


def write_behind_in_finally(x: torch.Tensor, i: torch.Tensor, log: list[Any], box: Any) -> Any:
    try:
        y = x[i]
        x.add_(1)
    finally:
        log.append("finally")
    return y


@pytest.mark.parametrize("program", [own_finally, own_manager, own_generator, write_behind_in_finally])
def test_fullgraph_never_skips_a_finally(program: Any) -> None:
    """The graph runs twice where what it wrote can be put back; where autograd records the write it is refused, before
    anything has been done, or split."""
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for i in (_GOOD, _BAD):
        assert_same(_outcome(program, i), _outcome(compiled, i))
        x, log = torch.zeros(2, 300, requires_grad=True) * 1, []
        with pytest.raises(argand.errors.Unsupported):
            compiled(x, i, log, None)
        assert log == [] and not x.any()
    split = argand.compile(program, backend="eager")
    for i in (_GOOD, _BAD):
        assert_same(_outcome(program, i), _outcome(split, i))
