"""Two ways to compute the same, of which the one that is faster on this machine is taken.

They are timed in passing: the first calls run both, on the operands that they got and with the threads that the program
has, and hand out what the presumed one computed. The outcome is kept in the disk cache, so that later processes know it
before they choose. With deterministic algorithms nothing is timed: a process is to compute what another one does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable

import torch

from argand import events
from argand.runtime import cache, processor

_PAIRS = 8


class Rivals:
    """Argand's own way and a library's.

    Arguments:
        name: of what is computed; part of a file name.
        presumed: whether the own way is taken while nothing was timed.
        gain: the own way is taken where it takes less than this share of the library's time.
    """

    def __init__(self, name: str, presumed: Callable[[], bool], gain: float) -> None:
        self.name = name
        self._presumed = presumed
        self._gain = gain
        self._ratios: dict[int, list[float]] = {}  # by threads: of the own way's time to the library's
        self._found: dict[int, bool] = {}
        self._warm: set[tuple[int, Hashable]] = set()
        self._asked: set[int] = set()

    def known(self) -> bool | None:
        """Whether the own way is faster here; None where nobody knows yet."""
        if torch.are_deterministic_algorithms_enabled():
            return self._presumed()
        threads = torch.get_num_threads()
        if threads not in self._found and threads not in self._asked:
            self._asked.add(threads)
            note = cache.read_note(self._note(threads)) or {}
            if note.get("faster") in ("own", "library"):
                self._found[threads] = note["faster"] == "own"
        return self._found.get(threads)

    def run(self, own: Callable[[], None], library: Callable[[], None], sizes: Hashable = None) -> None:
        """Compute by the faster way, or by both ways where that is not known; both write the same result.

        Arguments:
            sizes: what a way makes ready in its first call, which does not count.
        """
        known = self.known()
        if known is not None:
            return own() if known else library()
        presumed = self._presumed()
        first, last = (library, own) if presumed else (own, library)
        begin = time.perf_counter()
        first()
        middle = time.perf_counter()
        last()
        times = middle - begin, time.perf_counter() - middle
        own_time, library_time = reversed(times) if presumed else times
        threads = torch.get_num_threads()
        if (threads, sizes) in self._warm:
            self._count(threads, own_time / max(library_time, 1e-9))
        self._warm.add((threads, sizes))
        return None

    def _count(self, threads: int, ratio: float) -> None:
        ratios = self._ratios.setdefault(threads, [])
        ratios.append(ratio)
        if len(ratios) < _PAIRS:
            return
        middle = statistics.median(ratios)
        found = self._found[threads] = middle < self._gain
        cache.write_note(self._note(threads), {"faster": "own" if found else "library", "ratio": f"{middle:.3f}"})
        text = f"{self.name}: argand's own takes {middle:.2f} of the library's time here"
        events.emit("autotuning", "runtime", text, product=self.name, chosen="own" if found else "library")

    def _note(self, threads: int) -> str:
        about = (self.name, processor.model(), torch.__version__, str(threads), f"v{cache.VERSION}")
        return f"rivals-{cache.digest(str(about))}"

    def forget(self) -> None:
        """What this process knows; notes stay."""
        self._ratios.clear()
        self._found.clear()
        self._asked.clear()
        self._warm.clear()
