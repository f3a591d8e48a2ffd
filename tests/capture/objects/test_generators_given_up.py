"""Generators that nothing finishes, and objects whose end is seen, end where they do in eager, wherever the graph breaks."""

from __future__ import annotations

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
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_open_in_a_generator_ends_as_in_eager(program: Callable[..., Any]) -> None:
    def told(fn: Callable[..., Any]) -> Any:
        log: list[str] = []
        return fn(torch.ones(2), log).tolist(), log

    compiled = argand.compile(program, backend="eager")
    for _ in range(3):
        assert told(compiled) == told(program)
