"""Generators that nothing finishes, and objects whose end is seen, end where they do in eager, wherever the graph breaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


def made(x, n, log):
    try:
        for i in range(n):
            yield x + i
    finally:
        log.append("closed")


def behind_a_branch(x, log):
    values = made(x, 3, log)
    x = x + next(values)
    if x.sum() > 100:
        return x
    log.append("after")
    return x


def in_a_try(x, log):
    values = made(x, 3, log)
    x = x + next(values)
    try:
        if x.sum() > 100:
            return x
    finally:
        log.append("after")
    return x


def in_a_list(x, log):
    values = [made(x, 3, log), made(x, 2, log)]
    x = x + next(values[1])
    print(end="")
    log.append("after")
    return x


def without_a_break(x, log):
    pairs = zip(made(x, 3, log), made(x, 1, log))
    sums = [a + b for a, b in pairs]
    log.append("after")
    return sums[0]


def left_loop(x, log):
    for value in made(x, 3, log):
        if x.mean() > 0:
            break
    log.append("after")
    return x + value


def deleted(x, log):
    values = made(x, 3, log)
    x = x + next(values)
    print(end="")
    del values
    log.append("after")
    return x


def delegated(x, log):
    yield from made(x, 3, log)


def left_through_iterators(x, log):
    for _, (value, _) in enumerate(zip(delegated(x, log), range(3))):
        if x.mean() > 0:
            break
    log.append("after")
    return x + value


def deleted_with_its_iterator(x, log):
    values = map(abs, (value for value in delegated(x, log)))
    next(values)
    x = x + float(x.sum())
    del values
    log.append("after")
    return x


def stored_over(x, log):
    values = itertools.chain([x], delegated(x, log))
    next(values), next(values)
    x = x + float(x.sum())
    values = None
    log.append("after")
    return x, values


def stored_over_an_object(x, log):
    held = {1: (Noticed(log),)}
    x = x + float(x.sum())
    held = x * 2
    log.append("after")
    return x + held


def kept_in_a_dict(x, log):
    held = {1: iter([Noticed(log)])}  # noqa: F841
    x = x + float(x.sum())
    log.append("after")
    return x


class Noticed:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


def object_and_list(x, log):
    one = Noticed(log)  # noqa: F841
    more = [Noticed(log)]  # noqa: F841
    y = x + 1
    print(end="")
    log.append("after")
    return y


def in_an_enumerate(x, log):
    values = enumerate(made(x, 2, log))
    first = next(values)[1]
    log.append("before")
    print(end="")
    x = first + x
    print(end="")
    log.append("after")
    return x


PROGRAMS = [
    behind_a_branch, in_a_try, in_a_list, without_a_break, left_loop, deleted, object_and_list, in_an_enumerate,
    left_through_iterators, deleted_with_its_iterator, stored_over, stored_over_an_object, kept_in_a_dict,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_open_in_a_generator_ends_as_in_eager(program: Callable[..., Any]) -> None:
    def told(fn: Callable[..., Any]) -> Any:
        log: list[str] = []
        return repr(fn(torch.ones(2), log)), log

    compiled = argand.compile(program, backend="eager")
    for _ in range(3):
        assert told(compiled) == told(program)


def with_an_inner_one(x, log):
    inner = made(x, 3, log)
    for value in inner:
        yield value


def finished(x, log):
    inner = made(x, 3, log)
    next(inner)
    yield x


def closed_by_hand(x, log):
    outer = with_an_inner_one(x, log)
    x = x + next(outer)
    outer.close()
    del outer  # some versions of Python 3.12 keep until here what it holds
    log.append("after")
    return x


def let_go(x, log):
    x = x + next(with_an_inner_one(x, log))
    log.append("after")
    return x


def run_to_its_end(x, log):
    outer = finished(x, log)
    x = x + sum(outer)
    log.append("after")
    return x


@pytest.mark.parametrize("program", [closed_by_hand, let_go, run_to_its_end])
def test_what_a_closed_generator_holds_ends_with_it(program: Callable[..., Any]) -> None:
    want, got = [], []
    program(torch.ones(2), want)
    argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2), got)
    assert got == want


def test_the_first_of_a_modules_parameters_breaks_nothing() -> None:
    layer = torch.nn.Linear(2, 2)
    compiled = argand.compile(lambda x: layer(x.to(next(layer.parameters()).dtype)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2)), layer(torch.ones(2)))
