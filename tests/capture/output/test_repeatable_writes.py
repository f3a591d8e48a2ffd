"""Writes to inputs around operations that may raise inside of blocks: one graph, and what eager leaves behind."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend, assert_same

_GOOD, _BAD = torch.tensor([1, 0]), torch.tensor([1, 9])
_LOG: list[str] = []


class Cache:
    def __init__(self, width: int) -> None:
        self.keys, self.seen, self.open = torch.zeros(4, width), torch.zeros((), dtype=torch.int64), 0


def fill(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    """As a static cache is filled: a counter, and values over elements that nobody has read."""
    cache.open += 1
    try:
        cache.seen.add_(len(at))
        cache.keys.index_copy_(0, at, torch.ones(2, cache.keys.shape[1]) * cache.seen)
        return cache.keys.sum() + cache.seen
    finally:
        cache.open -= 1
        _LOG.append("left")


def fill_rows(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    try:
        rows = cache.keys[1:]
        rows.copy_(torch.full((3, 100), 2.0))
        cache.keys[at] = 3.0
        return cache.keys.sum()
    finally:
        _LOG.append("left")


def count_twice(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    try:
        cache.seen.add_(1)
        total = torch.arange(4)[at].sum()
        cache.seen.mul_(total + 2)
        return torch.arange(4)[at + cache.seen * 0]
    finally:
        _LOG.append("left")


def read_before(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    """What is written depends on what was there: a second time it would be something else."""
    try:
        more = cache.keys + 1
        cache.keys.copy_(more)
        return more[at]
    finally:
        _LOG.append("left")


def read_between(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    try:
        cache.keys[0].fill_(2.0)
        total = cache.keys.sum(0)
        cache.keys[1].copy_(total)
        return cache.keys[at]
    finally:
        _LOG.append("left")


def outcome(program: Callable[..., Any], width: int, at: torch.Tensor, times: int = 2) -> list[Any]:
    cache = Cache(width)
    _LOG.clear()
    told: list[Any] = []
    for _ in range(times):
        try:
            told.append(program(cache, at))
        except IndexError as error:
            told.append(type(error).__name__)
    return [*told, cache.keys, cache.seen, cache.open, list(_LOG)]


def slide(cache: Cache, at: torch.Tensor) -> torch.Tensor:
    """As a window slides: an operation that may raise before, between and behind writes to what was read."""
    cache.open += 1
    try:
        first = cache.keys[at]
        rolled = cache.keys.roll(-1, 0)
        rolled[torch.tensor([-1])] = first.sum(0) + 1.0
        cache.seen.add_(1)
        cache.keys.copy_(rolled)
        second = cache.keys[at + cache.seen - 1]
        cache.keys.mul_(0.5)
        return cache.keys[at * cache.seen] + second
    finally:
        cache.open -= 1
        _LOG.append("left")


def as_it_is(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend of somebody's, which says nothing when it raises."""
    forward: Callable[..., Any] = gm.forward
    return forward


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native", as_it_is])
@pytest.mark.parametrize("program", [fill, fill_rows, count_twice, read_before, read_between, slide])
def test_one_graph_that_can_start_again(program: Callable[..., Any], backend: Any) -> None:
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for width, at in itertools.product((100, 2) if program is not fill_rows else (100,), (_GOOD, _BAD, _GOOD)):
        assert_same(outcome(program, width, at), outcome(compiled, width, at))


def test_inputs_that_come_to_share_memory() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, at: torch.Tensor) -> Any:
        try:
            a.copy_(a * 2 + b)
            return a[at]
        finally:
            _LOG.append("left")

    compiled = argand.compile(program, backend="aot_eager")
    for together in (False, True):
        for at in (_GOOD, _BAD):
            results = []
            for run in (program, compiled):
                x = torch.ones(200)
                a, b = (x[:100], x[50:150]) if together else (x[:100], torch.ones(100))
                _LOG.clear()
                try:
                    told = run(a, b, at * 20)
                except IndexError:
                    told = None
                results.append((told, x, list(_LOG)))
            assert_same(*results)


def test_write_that_autograd_records_is_not_put_back() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> Any:
        try:
            x.mul_(x.detach() + 1)
            return x[at]
        except IndexError:
            return x.sum()

    for at in (_GOOD, _BAD):
        gradients = []
        for run in (program, argand.compile(program, backend="eager")):
            leaf = torch.full((100,), 2.0, requires_grad=True)
            run(leaf * 3, at * 20).sum().backward()
            gradients.append(leaf.grad)
        assert_same(*gradients)


def test_two_inputs_in_one_memory() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, at: torch.Tensor) -> Any:
        try:
            total = b.sum()
            a.copy_(total.expand_as(a))
            return b[at]
        finally:
            _LOG.append("left")

    for at in (_GOOD, _BAD):
        results = []
        for run in (program, argand.compile(program, backend="eager")):
            x = torch.ones(200)
            try:
                told = run(x[:100], x[50:53], at)
            except IndexError:
                told = None
            results.append((told, x))
        assert_same(*results)


@pytest.mark.parametrize("channels", [3, 100])
def test_statistics_of_a_batch_are_counted_once(channels: int) -> None:
    def program(norm: torch.nn.Module, x: torch.Tensor, at: torch.Tensor) -> Any:
        try:
            return norm(x)[at]
        except IndexError:
            return None

    for at in (_GOOD, _BAD):
        results = []
        for run in (program, argand.compile(program, backend="eager")):
            torch.manual_seed(0)
            norm = torch.nn.BatchNorm1d(channels)
            told = run(norm, torch.randn(4, channels), at)
            results.append((told, norm.running_mean, norm.running_var, norm.num_batches_tracked))
        assert_same(*results)


def test_nothing_is_copied_where_nothing_may_raise() -> None:
    def program(counter: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return x * counter

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    counter = torch.zeros(())
    compiled(counter, torch.ones(3))
    (entry,) = argand._core._C.code_entries(program.__code__)
    assert not any("copies_of" in str(const) for const in entry.code.co_consts)
    assert len(backend.graphs) == 1


class Memo:
    last: Any = None


@argand.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.0)


def test_effects_before_an_opaque_function_do_not_end_the_graph() -> None:
    """einx's functions, each one node: what the program stored before them is a tensor that the graph computes."""

    def program(memo: Memo, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        memo.last = x * 2
        y = opaque(memo.last)
        return y[at]

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    for at in (_GOOD, _BAD):
        results = []
        for run in (program, compiled):
            memo = Memo()
            try:
                told = run(memo, torch.arange(4.0), at)
            except IndexError:
                told = None
            results.append((told, memo.last))
        assert_same(*results)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_that_varies_beside_what_is_written(backend: str) -> None:
    def program(keys: torch.Tensor, count: int, at: torch.Tensor) -> Any:
        try:
            more = keys * count
            keys.copy_(more + 1)
            return more[at]
        finally:
            _LOG.append("left")

    compiled = argand.compile(program, backend=backend)
    for count, at in ((3, _GOOD), (4, _GOOD), (5, _BAD), (6, _GOOD)):
        results = []
        for run in (program, compiled):
            keys = torch.ones(4, 100)
            try:
                told = run(keys, count, at)
            except IndexError:
                told = None
            results.append((told, keys))
        assert_same(*results)


def test_what_writes_cost_to_record_does_not_grow_with_the_inputs() -> None:
    """Each write of an optimizer's step asks what else lies in that memory: not by looking at all inputs."""

    def step(tensors: list[torch.Tensor], caches: list[torch.Tensor]) -> None:
        for tensor, cache in zip(tensors, caches):
            state = tensor * 2
            state.add_(1)
            tensor.mul_(0.5).add_(state)
            cache.copy_(state)

    def calls(count: int) -> int:
        events = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal events
            events += event == "c_call" and getattr(argument, "__name__", "") == "untyped_storage"

        given = [[torch.zeros(70) for _ in range(count)] for _ in range(2)]
        argand.reset()
        compiled = argand.compile(step, backend="eager", fullgraph=True)
        sys.setprofile(note)
        try:
            with torch.no_grad():
                compiled(*given)
        finally:
            sys.setprofile(None)
        return events

    few, some, many = (calls(count) for count in (2, 4, 8))
    assert many - some == 2 * (some - few)
