"""Objects die when eager's would: a capture keeps nothing of what it looked at, a resume function's caller neither."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
import sweeps


class Thing:
    """Something that a weak reference can point to."""


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Without the garbage collector only what nothing refers to dies."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def whole(thing: Any, t: torch.Tensor) -> int:
    held = [thing]
    return len(held) + len({"a": thing})


def raises(thing: Any, t: torch.Tensor) -> None:
    kept = thing
    raise ValueError(kept)


def breaks(thing: Any, t: torch.Tensor) -> int:
    kept = thing
    print("now")
    return len([kept])


def graph(thing: Any, t: torch.Tensor) -> torch.Tensor:
    thing.x = t + 1
    return thing.x


def graph_and_break(thing: Any, t: torch.Tensor) -> torch.Tensor:
    thing.x = t + 1
    print("now")
    return t + 2


def closure(thing: Any, t: torch.Tensor) -> bool:
    def inner() -> Any:
        return thing

    return inner() is thing


def handled(thing: Any, t: torch.Tensor) -> int:
    try:
        raise ValueError(thing)
    except ValueError:
        return 1


def generator(thing: Any, t: torch.Tensor) -> int:
    def items() -> Iterator[Any]:
        yield thing
        yield 2

    return len(list(items()))


def written_and_listed(thing: Any, t: torch.Tensor) -> list[Any]:
    thing.x = t + 1
    return [thing]


def attribute_of_a_tensor(thing: Any, t: torch.Tensor) -> None:
    result = t + 1
    result.thing = thing  # type: ignore[attr-defined]
    raise ValueError(result)


FUNCTIONS = [whole, raises, breaks, graph, graph_and_break, closure, handled, generator]


@pytest.mark.parametrize("fn", [*FUNCTIONS, written_and_listed, attribute_of_a_tensor])
def test_nothing_is_kept_after_a_call(fn: Callable[..., Any]) -> None:
    compiled = argand.compile(fn, backend="eager")
    for _ in range(2):
        thing = Thing()
        seen = weakref.ref(thing)
        try:
            compiled(thing, torch.ones(2))
        except ValueError:
            pass
        del thing
        assert seen() is None


def test_a_tensor_dies_that_a_cell_held_and_the_frame_raised() -> None:
    def f(t: torch.Tensor) -> None:
        raise ValueError([t + item for item in map(lambda number: (number, t + 1)[0], [1.0])])

    t = torch.ones(2)
    seen = weakref.ref(t)
    with contextlib.suppress(ValueError):
        argand.compile(f, backend="eager")(t)
    del t
    assert seen() is None


def test_local_dies_behind_a_break_when_it_is_dropped() -> None:
    def f() -> bool:
        thing = Thing()
        seen = weakref.ref(thing)
        print("break")
        thing = None
        print("break")
        return seen() is None

    assert f()
    assert argand.compile(f, backend="eager")()


def test_local_dies_behind_a_break_after_a_graph() -> None:
    def f(t: torch.Tensor) -> tuple[torch.Tensor, bool]:
        t = t + 1
        thing = Thing()
        print("break")
        seen = weakref.ref(thing)
        print("break")
        thing = None
        print("break")
        return t * 2, seen() is None

    assert f(torch.ones(2))[1]
    assert argand.compile(f, backend="eager")(torch.ones(2))[1]


def test_argument_dies_in_the_compiled_function() -> None:
    def f(things: list[Any], t: torch.Tensor) -> bool:
        seen = weakref.ref(things[0])
        things.clear()
        print("break")
        t = t + 1
        return seen() is None

    assert f([Thing()], torch.ones(2))
    assert argand.compile(f, backend="eager")([Thing()], torch.ones(2))


_watched: list[weakref.ref[torch.Tensor]] = []
_alive: list[bool] = []


@torch.library.custom_op("argand_test_release::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    """In the middle of a graph: is the graph's first input still there?"""
    _alive.append(_watched[-1]() is not None)
    return x.clone()


@look.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@argand.disable
def watch(x: torch.Tensor) -> None:
    _watched.append(weakref.ref(x))


class Scales(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4)) for _ in range(count)])

    def forward(self, x: torch.Tensor, keep: bool = False) -> Any:
        x = big = x * 2
        if not keep:
            del big
        watch(x)
        for scale in self.scales:
            x = x * scale
        x = look(x + 1)
        return (x, big) if keep else x


@pytest.mark.parametrize(
    ("backend", "count", "dynamic"), sweeps.combinations(["eager", "native"], [2, 20], [False, None])
)
def test_graph_frees_what_the_program_gave_up(backend: str, count: int, dynamic: bool | None) -> None:
    model = Scales(count)
    compiled = argand.compile(model, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        gc.collect()  # tracing holds its examples in circles
        for _ in range(3):
            _alive.clear()
            expected = model(torch.ones(3, 4))
            assert _alive == [False]
            assert torch.equal(compiled(torch.ones(3, 4)), expected)
            assert _alive == [False, False]
        _alive.clear()
        for each in (model, compiled, compiled):
            x, big = each(torch.ones(3, 4), True)
            assert torch.equal(x, expected) and torch.equal(big, torch.full((3, 4), 2.0))
        assert _alive == [True, True, True]
    with_grad = compiled(torch.ones(3, 4))
    assert with_grad.requires_grad is model(torch.ones(3, 4)).requires_grad


def test_graph_input_used_again_behind_the_graph() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x + 1
        print("break")
        y = y * x
        y = y + x.sum()
        print("break")
        try:
            z = x - y
            print("break")
            return z / x.sum().item()
        except ZeroDivisionError:
            return x

    for value in (1.0, 0.0):
        args = torch.full((3,), value), torch.arange(3.0)
        assert torch.equal(argand.compile(f, backend="eager")(*args), f(*args))
