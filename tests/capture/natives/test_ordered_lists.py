"""bisect and heapq: what they do to lists, step by step, as C does it."""

from __future__ import annotations

import bisect
import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from capture.agreement import Agreeing, agree, outcome

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")


class Ranked:
    """Compares by its rank, and writes down every comparison."""

    def __init__(self, rank: Any, log: list[Any]) -> None:
        self.rank, self.log = rank, log

    def __lt__(self, other: Any) -> Any:
        self.log.append((self.rank, other.rank))
        return self.rank < other.rank

    def __repr__(self) -> str:
        return f"Ranked({self.rank})"


HEAPS: dict[str, Callable[[list[Any], Any], Any]] = {
    "heapify": lambda h, v: heapq.heapify(h),
    "heappush": lambda h, v: heapq.heappush(h, v),
    "heappop": lambda h, v: heapq.heappop(h),
    "heappushpop": lambda h, v: heapq.heappushpop(h, v),
    "heapreplace": lambda h, v: heapq.heapreplace(h, v),
    "sorted": lambda h, v: (heapq.heapify(h), [heapq.heappop(h) for _ in range(len(h))]),
    "nsmallest": lambda h, v: heapq.nsmallest(3, h),
    "nlargest": lambda h, v: heapq.nlargest(3, h, key=lambda item: item),
    "merge": lambda h, v: list(heapq.merge(h[:4], h[4:], [v])),
    "merge from the end": lambda h, v: list(heapq.merge(h[:4], h[4:], [v], reverse=True)),
}
BISECTIONS: dict[str, Callable[[list[Any], Any], Any]] = {
    "left": lambda h, v: bisect.bisect_left(h, v),
    "right": lambda h, v: bisect.bisect(h, v),
    "range": lambda h, v: bisect.bisect_right(h, v, 1, len(h) // 2),
    "named": lambda h, v: bisect.bisect_left(h, v, hi=len(h), lo=0),
    "to the end": lambda h, v: bisect.bisect_left(h, v, 0, -1),
    "negative": lambda h, v: bisect.bisect_left(h, v, -1),
    "too far": lambda h, v: bisect.bisect_left(h, v, 0, len(h) + 3),
    "insort": lambda h, v: bisect.insort(h, v),
    "insort left": lambda h, v: bisect.insort_left(h, v),
}
ALL = HEAPS | BISECTIONS


def lists(name: str) -> list[list[int]]:
    draw = random.Random(name)
    made = [[draw.randrange(9) for _ in range(size)] for size in (0, 1, 2, 3, 7, 20)]
    return made if name in HEAPS else [sorted(each) for each in made]


@pytest.mark.parametrize(("name", "dynamic"), sweeps.chessboard(ALL, [False, True]))
def test_of_numbers(name: str, dynamic: bool) -> None:
    does = ALL[name]

    def program(x: torch.Tensor, h: list[Any], v: Any) -> Any:
        given, own = does(h, v), list(h)
        return x * 2, given, own, does(own, v), own

    agreeing = Agreeing(program, dynamic)
    for values in lists(name):
        for value in (0, 4, 4.5, 9):
            agreeing.of(lambda values=values, value=value: (list(values), value))  # type: ignore[misc]


@pytest.mark.parametrize("name", ALL)
def test_of_objects_that_compare_themselves(name: str) -> None:
    """The same comparisons in the same order."""
    does = ALL[name]

    def program(x: torch.Tensor, values: list[Any], value: Any) -> Any:
        log: list[Any] = []
        h = [Ranked(each, log) for each in values]
        try:
            given = does(h, Ranked(value, log))
        except TypeError as error:
            given = str(error)
        return x * 2, given, h, log

    agree(program, *[(values, value) for values in (*lists(name), [1, "a", 2]) for value in (0, 4)])


@pytest.mark.parametrize("name", ["heapify", "heappush", "heappop", "left", "insort", "nsmallest"])
def test_is_captured(name: str) -> None:
    does = ALL[name]

    def program(x: torch.Tensor, h: list[Any]) -> Any:
        return x * 2, does(h, 3), h

    whole = argand.compile(program, backend="eager", fullgraph=True)
    assert repr(whole(torch.ones(2), [1, 2, 5, 7])) == repr(program(torch.ones(2), [1, 2, 5, 7]))


class Growing(list):  # type: ignore[type-arg]
    def append(self, item: Any) -> None:
        list.append(self, item)
        list.append(self, item)


ODD: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (1, 2, 3),
    "range": lambda: range(5),
    "text": lambda: "abc",
    "dict": lambda: {0: 1, 1: 2},
    "set": lambda: {1, 2},
    "number": lambda: 3,
    "list of a class": lambda: Growing([1, 2, 3]),
    "tensor": lambda: torch.arange(4),
    "no tensor's elements": lambda: torch.arange(0),
    "tensors": lambda: [torch.tensor(1), torch.tensor(5)],
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["heapify", "heappush", "heappop", "heapreplace", "left", "insort"])
@pytest.mark.filterwarnings("ignore")
def test_of_what_is_no_list(name: str, kind: str) -> None:
    does = ALL[name]

    def program(x: torch.Tensor, h: Any, v: Any) -> Any:
        try:
            return x * 2, does(h, v), h
        except (TypeError, AttributeError, KeyError) as error:
            return x * 2, type(error), str(error), h

    Agreeing(program).of(lambda: (ODD[kind](), 2))


CALLS: dict[str, Callable[[], Any]] = {
    "none": lambda: bisect.bisect_left(),  # type: ignore[call-overload]
    "named": lambda: bisect.bisect_left(a=[1, 2], x=2),
    "twice": lambda: bisect.bisect_left([1], 2, 0, lo=0),  # type: ignore[call-overload]
    "no index": lambda: bisect.bisect_left([1], 2, 0.5),  # type: ignore[call-overload]
    "key": lambda: bisect.bisect_left([1, 2, 3], -2, key=lambda v: -v),
    "key of insort": lambda: bisect.insort([1, 2, 3], -2, key=lambda v: v * 0),
    "too many": lambda: heapq.heappush([], 1, 2),  # type: ignore[call-arg]
    "empty": lambda: heapq.heappop([]),
    "empty replaced": lambda: heapq.heapreplace([], 1),
    "by name": lambda: heapq.heappush(heap=[], item=1),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_c_refuses_or_takes(name: str) -> None:
    does = CALLS[name]

    def program(x: torch.Tensor) -> Any:
        try:
            return x * 2, does()
        except (TypeError, IndexError) as error:
            return x * 2, type(error), str(error)

    agree(program)


def test_a_comparison_that_changes_the_heap() -> None:
    class Removing:
        held: list[Any]

        def __lt__(self, other: object) -> bool:
            self.held.pop()
            return False

    def program(x: torch.Tensor) -> Any:
        Removing.held = [Removing() for _ in range(5)]
        try:
            return x * 2, heapq.heapify(Removing.held)
        except RuntimeError as error:
            return x * 2, str(error)

    assert outcome(argand.compile(program, backend="eager"), torch.ones(1)) == outcome(program, torch.ones(1))
