"""argand's hook next to another PEP 523 hook that it knows nothing about: torch._dynamo's."""

from __future__ import annotations

from typing import Any

import pytest
from core_helpers import Recorder, always, positional

from argand._core import _C

torch = pytest.importorskip("torch")

KEY = object()


def run(callback: Any, fn: Any, *args: Any) -> Any:
    return _C.run_with_callback(callback, KEY, fn, args)


@pytest.fixture
def dynamo() -> Any:
    import torch._dynamo

    import argand

    argand.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # registers what surrounds each capture
    torch._dynamo.reset()
    yield torch._dynamo
    torch._dynamo.reset()


class Counting:
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.graphs += 1
        return gm.forward


def test_dynamo_inside_a_region(dynamo: Any) -> None:
    backend = Counting()

    def body(x: Any) -> Any:
        return x.sin() + 1

    compiled = torch.compile(body, backend=backend)

    def leaf(x: int) -> int:
        return x + 1

    def swapped(x: int) -> int:
        return x + 100

    def f(x: Any) -> Any:
        return compiled(x), leaf(1)

    def answer(info: _C.FrameInfo) -> Any:
        if info.code is leaf.__code__:
            return _C.Entry(positional(swapped), always(), KEY)
        return None

    x = torch.ones(3)
    for _ in range(3):
        value, number = run(answer, f, x)
        assert torch.equal(value, x.sin() + 1) and number == 101
    assert backend.graphs == 1 and not _C.is_hook_installed()
    assert torch.equal(compiled(x), x.sin() + 1) and leaf(1) == 2 and backend.graphs == 1


def test_region_inside_dynamo(dynamo: Any) -> None:
    backend = Counting()

    def leaf(x: int) -> int:
        return x + 1

    def swapped(x: int) -> int:
        return x + 100

    answer = Recorder({leaf.__code__: lambda info: _C.Entry(positional(swapped), always(), KEY)})

    @dynamo.disable
    def region(x: int) -> Any:
        return run(answer, leaf, x)

    @torch.compile(backend=backend)
    def f(x: Any) -> Any:
        y = x + 1
        n = region(1)
        return y * n

    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 202.0))
    assert backend.graphs == 2 and not _C.is_hook_installed()


def test_alternating_for_a_long_time(dynamo: Any) -> None:
    backend = Counting()

    @torch.compile(backend=backend)
    def compiled(x: Any) -> Any:
        return x * 2

    def leaf(x: int) -> int:
        return x + 1

    rec = Recorder({leaf.__code__: lambda info: _C.Entry(positional(clone_of_leaf), always(), KEY)})

    def clone_of_leaf(x: int) -> int:
        return x + 5

    x = torch.ones(2)

    def both(n: int) -> Any:
        return compiled(x) * leaf(n)

    for i in range(50):
        assert compiled(x).sum() == 4
        assert run(rec, leaf, i) == i + 5
        assert torch.equal(
            run(lambda info: rec(info) if info.code is leaf.__code__ else None, both, i),
            torch.full((2,), 2.0 * (i + 5)),
        )
    assert backend.graphs == 1 and not _C.is_hook_installed()


def test_graph_break_of_dynamo_inside_a_region_and_exceptions(dynamo: Any) -> None:
    backend = Counting()

    @torch.compile(backend=backend)
    def compiled(x: Any, fail: bool) -> Any:
        x = x + 1
        print("", end="")
        if fail:
            raise ValueError("inside")
        return x.cos()

    def f(x: Any) -> Any:
        try:
            compiled(x, True)
        except ValueError as e:
            return str(e), compiled(x, False)

    rec = Recorder()
    x = torch.zeros(2)
    for _ in range(3):
        text, value = run(rec, f, x)
        assert text == "inside" and torch.equal(value, (x + 1).cos())
    assert not _C.is_hook_installed()
    assert torch.equal(compiled(x, False), (x + 1).cos())
