"""Delta debugging: something that fails is made smaller, as long as it fails in the same way.

A *cut* proposes candidates, the best first, and is told of each whether it was taken; it goes on from one that was.
What candidates are (graphs, scripts), which of two is smaller and when one fails is for clients to say.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import field
from typing import Generic, TypeVar

from argand.quick_dataclasses import dataclass

T = TypeVar("T")
Proposals = Generator[T, bool, None]


@dataclass(slots=True)
class Search(Generic[T]):
    """One search.

    Arguments:
        smallest: the smallest that fails so far.
        tried: by key of a candidate: whether it fails as wanted.
        attempts: how many had to be run to find that out.
    """

    smallest: T
    tried: dict[str, bool] = field(default_factory=dict)
    attempts: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def out_of_time(self) -> bool:
        """Whether what there is must do."""
        raise NotImplementedError

    def key(self, candidate: T) -> str:
        """Equal for candidates that need not both be run."""
        raise NotImplementedError

    def is_smaller(self, candidate: T) -> bool:
        """Whether it is smaller than the smallest so far."""
        raise NotImplementedError

    def attempt(self, candidate: T) -> bool:
        """Run a candidate: whether it fails as wanted."""
        raise NotImplementedError

    def accept(self, candidate: T) -> None:
        """Go on from a candidate."""
        self.smallest = candidate

    def fails(self, candidate: T) -> bool:
        """Whether a candidate fails as wanted; found out once."""
        key = self.key(candidate)
        if key not in self.tried:
            self.attempts += 1
            self.tried[key] = self.attempt(candidate)
        return self.tried[key]

    def apply(self, cut: Proposals[T]) -> bool:
        """Try what a cut proposes; whether something smaller was accepted."""
        accepted = False
        answer: bool | None = None
        while not self.out_of_time:
            try:
                candidate = next(cut) if answer is None else cut.send(answer)
            except StopIteration:
                break
            answer = self.is_smaller(candidate) and self.fails(candidate)
            if answer:
                accepted = True
                self.accept(candidate)
        return accepted


def pieces(count: int, size: int) -> Iterator[slice]:
    """`count` things in pieces of one size, from the end: later ones depend on earlier ones."""
    return (slice(start, start + size) for start in reversed(range(0, count, size)))
