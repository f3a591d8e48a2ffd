"""Checks of many seeds in processes that may crash or hang: the seed at hand is known, the others are checked elsewhere."""

from __future__ import annotations

import collections
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

SEEDS = 200
"""Seeds that one process checks, one after the other."""


@dataclass(frozen=True)
class Ended:
    """A process ended, or had to be ended, in the middle of a seed."""

    seed: int
    why: str


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    left: collections.deque[int]
    heard: float
    ended: bool = False


def results(
    check: Callable[[int], Any], seeds: Iterable[int], jobs: int, begin: Callable[[], None], seconds: float
) -> Iterator[Any]:
    """What `check` says of each seed, in any order; `Ended` where its process crashed or said nothing for `seconds`.

    Arguments:
        check, begin: can be pickled; `begin` is called once in each process.
    """
    waiting = collections.deque(seeds)
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_started(check, begin, [waiting.popleft() for _ in range(min(SEEDS, len(waiting)))]))
            wait([worker.pipe for worker in workers], timeout=5.0)
            for worker in tuple(workers):
                yield from _heard(worker)
                gone = _why_gone(worker, seconds)
                if gone is not None:
                    workers.remove(worker)
                    if worker.left:
                        yield Ended(worker.left.popleft(), gone)
                        waiting.extendleft(reversed(worker.left))
    finally:
        for worker in workers:
            worker.process.kill()


def _started(check: Callable[[int], Any], begin: Callable[[], None], seeds: list[int]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, check, begin, seeds), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, collections.deque(seeds), time.monotonic())


def _work(pipe: Connection, check: Callable[[int], Any], begin: Callable[[], None], seeds: list[int]) -> None:
    begin()
    for seed in seeds:
        pipe.send(check(seed))
    pipe.close()


def _heard(worker: _Worker) -> Iterator[Any]:
    try:
        while worker.pipe.poll():
            result = worker.pipe.recv()
            worker.left.popleft()
            worker.heard = time.monotonic()
            yield result
    except (EOFError, OSError):  # it is ending
        worker.ended = True
        worker.process.join(30)


def _why_gone(worker: _Worker, seconds: float) -> str | None:
    """None while the process works."""
    if worker.ended:
        return f"the process ends with status {worker.process.exitcode}"
    if time.monotonic() - worker.heard <= seconds:
        return None
    worker.process.kill()
    worker.process.join()
    return f"the process says nothing for {seconds:.0f} s"
