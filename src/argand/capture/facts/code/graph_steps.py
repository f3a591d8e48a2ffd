"""A graph in steps, some of which are captured in their turn: how it runs, here and in processes that load it.

In come functions with the places of what they take and give; out goes one function of the graph's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from argand._core import _C
from argand.capture.facts.code import skip
from argand.outcomes import store
from argand.outcomes.resolver import module_of
from argand.runtime.recipes import with_recipe

Places: TypeAlias = tuple[list[int], list[int], list[int]]
"""Of a step's arguments, of its results, and of those that nobody needs after it."""
Step: TypeAlias = tuple[Callable[..., Iterable[object]], Places, list[str] | None]
"""A function, its places, and the names of the sizes and numbers that vary, where it is to be captured."""


class Whole(Protocol):
    """Of the region that the graph belongs to."""

    def of_parts(self) -> tuple[Callable[[_C.FrameInfo], _C.Answer], object]:
        """The frame hook's callback, and the region, of steps that are captured."""


def in_steps(
    region: Whole, steps: Sequence[Step], count: int, plain: Sequence[object], results: Sequence[int]
) -> Callable[..., object]:
    """What runs the steps in order.

    Arguments:
        count: of the places; the first are the graph's inputs.
        plain: numbers, whose places come behind.
        results: places of the graph's.
    """
    answer, inner = region.of_parts()
    called: list[tuple[Callable[..., Iterable[object]], Places]] = []
    for function, places, varying in steps:
        if varying is not None:
            function = skip.with_frame(function)
            store.STORE.remember(function.__code__, inner, {"varying": varying})
            function = _C.Region(answer, inner, function)
        called.append((function, places))

    def run(*args: object) -> object:
        values: list[object] = [*args, *[None] * (count - len(args)), *plain]
        del args
        for function, (takes, gives, drops) in called:
            arguments = [values[slot] for slot in takes]
            for slot in drops:
                values[slot] = None
            for slot, value in zip(gives, function(*arguments)):
                values[slot] = value
            del arguments
        return tuple([values[slot] for slot in results])

    if store.STORE.collected is not None:  # what is saved is whole
        return run
    return with_recipe(run, "in steps", lambda: (region, tuple(steps), count, tuple(plain), tuple(results)))


def stored_steps(
    region: Whole, steps: Sequence[Step], count: int, plain: Sequence[object], results: Sequence[int]
) -> Callable[..., object]:
    """The same of steps that an earlier process captured: their graphs' code is made anew."""
    return in_steps(region, [(module_of(graph).forward, *rest) for graph, *rest in steps], count, plain, results)
