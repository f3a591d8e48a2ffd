"""Tensors larger than the machine's memory: eager's error comes, where it comes, and no loop runs for hours instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same

import argand
from argand.capture.metadata import memory

HUGE = 1 << 45


def _wrote(x: torch.Tensor) -> Any:
    y = x.clone()
    try:
        y.add_(1)
        x.mul_(2)
        return y + torch.ones(HUGE).sum(), x
    except RuntimeError:
        return y, x.clone()


def _caught(make: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def program(x: torch.Tensor) -> Any:
        try:
            return x + make(x)
        except RuntimeError as error:
            return x + 3, "allocate" in str(error)

    return program


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reduced": _caught(lambda x: torch.zeros(HUGE).sum()),
    "computed": _caught(lambda x: (torch.ones(HUGE) * x[0]).amax()),
    "expanded": _caught(lambda x: (x[:1].expand(HUGE) + 1).sum()),
    "made contiguous": _caught(lambda x: x[:1].expand(HUGE).contiguous()[0]),
    "one element": _caught(lambda x: torch.zeros(HUGE)[3]),
    "size alone": _caught(lambda x: x.new_empty(HUGE).shape[0]),
    "unused": _caught(lambda x: (torch.zeros(HUGE), 1)[1]),
    "random": _caught(lambda x: torch.rand(HUGE, 1).mean()),
    "one of several": _caught(lambda x: torch.zeros(2, HUGE).unbind()[0].sum()),
    "behind a write to an input": _wrote,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_no_memory_holds_raises_where_eager_raises(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = argand.compile(program, backend=backend)
    for _ in range(2):
        x, y = torch.ones(3), torch.ones(3)
        assert_same(program(x), compiled(y))
        assert_same(x, y)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_vary_are_guarded(dynamic: bool | None) -> None:
    numbered = _numbered
    compiled = argand.compile(numbered, backend="native", dynamic=dynamic)
    for n in (3, 5, 7, HUGE, 9, 1 << 60, 4):
        assert_same(numbered(torch.ones(2), n), compiled(torch.ones(2), n))


def _numbered(x: torch.Tensor, n: int) -> Any:
    try:
        return torch.ones(n).sum() + x
    except RuntimeError as error:
        return x + 3, "allocate" in str(error) or "Storage size" in str(error)


def test_products_of_sizes_that_vary_are_guarded() -> None:
    def pairs(x: torch.Tensor) -> Any:
        try:
            return (x[:, None] - x[None]).abs().sum()
        except RuntimeError as error:
            return x[:1] + 3, "allocate" in str(error)

    compiled = argand.compile(pairs, backend="native", dynamic=True)
    for n in (3, 5, 1 << 23, 4):
        assert_same(pairs(torch.ones(n)), compiled(torch.ones(n)))


def test_views_take_no_memory() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.expand(1 << 40)[:: 1 << 30].sum(), x.expand(1 << 40).shape

    compiled = argand.compile(program, backend="native", fullgraph=True)
    assert_same(program(torch.ones(1)), compiled(torch.ones(1)))


def test_results_that_inputs_vouch_for_need_no_guard() -> None:
    guarded: list[Any] = []
    require = memory.Relation

    def noted(*args: Any) -> Any:
        guarded.append(args)
        return require(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "Relation", noted)
        compiled = argand.compile(lambda x: (x.double().softmax(-1) * 2).sum(-1), backend="eager", dynamic=True)
        compiled(torch.ones(3, 4))
        assert not guarded
        argand.compile(lambda x: x[:, None] * x, backend="eager", dynamic=True)(torch.ones(5))
        assert guarded


def test_the_limit_is_the_machines_memory() -> None:
    limit = memory._memory_of(torch.device("cpu"))
    assert limit is not None and limit <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory._memory_of(torch.device("meta")) is None
