"""Runs a table of combinations of programs and compares each with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def run(
    combinations: Iterable[Any],
    chosen: Callable[..., bool],
    differs: Callable[..., str | None],
    share: int,
    first: int = 0,
) -> None:
    """Print each difference, then the counts.

    Arguments:
        combinations: each is what `chosen` and `differs` are called with.
        chosen: whether one is tried.
        differs: what differs, if anything.
        share: every how manieth is tried.
        first: the number of the first that is.
    """
    count = wrong = 0
    for number, combination in enumerate(combinations):
        if (number - first) % share or not chosen(*combination):
            continue
        count += 1
        found = differs(*combination)
        if found is not None:
            wrong += 1
            print(found, flush=True)
    print(f"{count} combinations, {wrong} differences")
