"""Two ways to compute the same, of which the one that is faster on this machine is taken.

They are timed in passing, for each kind of operands: its first calls take turns, each with the operands that it got and
the threads that the program has, until enough is known. What takes long is computed once a call, as ever, so that no
call waits for the other way; what does not is computed often by the first call already. While argand's compilers want
the processors, too, the library's way is taken, which is not slower than eager's, and a later call is timed. Calls in
which others had the processors say nothing: after some of these, too, the library's way is taken for a while. The
outcomes are kept in the disk cache: later processes know them before they choose. With deterministic algorithms nothing
is timed: a process is to compute what another one does.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import field

import torch

from argand import events
from argand.quick_dataclasses import dataclass
from argand.runtime import cache, process, processor
from argand.runtime.kernels.calm import Watch, is_known
from argand.runtime.kernels.texts import text_of
from argand.threads import at_end

_PAIRS = 4  # of times of a kind
_MOST_PAIRS = 24
_SHORT = 0.002  # seconds of all up to which there are more pairs, and of a call: it computes nothing more then
_CLOSE, _LONGER = 1.2, 0.02  # two times that differ by less than this factor are taken more often, for so many seconds
_LEAST_PAIRS, _LONG = 2, 0.05  # seconds of all from which there are fewer
_FAR, _FAR_PAIRS = 1.5, 3  # times that differ by more than this factor are taken less often
_FIRST = (1, 1, 0, 0, 0)  # of pairs: so nothing that happens every second, third or fourth time is always one way's
_KINDS = 8  # for which the library has to be faster, before the own way is not asked any more
_MOST_KINDS = 500  # that are remembered
_BETWEEN = 1.0  # seconds between two writings of outcomes, while more are to come
_MOST_DISTURBED = 6  # calls in which others had the processors, before none is timed for a while
_REST, _LONGEST_REST = 0.05, 20.0  # seconds of the first while, and of the longest: each is twice as long as the last


@dataclass(slots=True)
class _Trial:
    """Two ways that are being timed for a kind.

    Arguments:
        gain: the own way is to take less than this share of the library's time.

    Fields:
        turns: how often one was computed.
        times: of the own way and of the library's, where these were left alone; the first of each makes ready what it
            needs, and does not count.
        disturbed: how many were not, since the last rest.
        rest: seconds of the next rest.
        wakes: when the last one ends.
        ratio: of typical times, as far as is known.
    """

    gain: float
    turns: int = 0
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    disturbed: int = 0
    rest: float = _REST
    wakes: float = 0.0
    ratio: float = 1.0

    def turn(self) -> int:
        """Which way is next."""
        pair, second = divmod(self.turns, 2)
        self.turns += 1
        return _FIRST[pair % len(_FIRST)] ^ second

    def note(self, way: int, seconds: float, calm: bool) -> None:
        """What a turn took, and whether it was left alone."""
        if calm or not self.times[way]:
            self.times[way].append(seconds)
            return
        self.disturbed += 1
        if self.disturbed == _MOST_DISTURBED:
            self.wakes = time.monotonic() + self.rest
            self.disturbed, self.rest = 0, min(2 * self.rest, _LONGEST_REST)

    def rests(self) -> bool:
        """Whether others had the processors so often that nothing is timed now."""
        return self.wakes > 0.0 and time.monotonic() < self.wakes

    def is_over(self) -> bool:
        """Whether enough is known."""
        own, library = (times[1:] for times in self.times)
        number = min(len(own), len(library))
        if number < _LEAST_PAIRS:
            return False
        passed = sum(own) + sum(library)
        self.ratio = _typical(own) / max(_typical(library), 1e-9)
        if number >= _MOST_PAIRS:
            return True
        if not is_known(own) or not is_known(library):
            return False
        if self._within(_CLOSE):
            return number >= _PAIRS and passed > _LONGER
        if not self._within(_FAR):
            return number >= (_PAIRS if passed <= _SHORT else _FAR_PAIRS if passed <= _LONG else _LEAST_PAIRS)
        return passed > _LONG or (number >= _PAIRS and passed > _SHORT)

    def _within(self, factor: float) -> bool:
        """Whether the ratio is that close to the one at which the ways are worth the same."""
        return self.gain / factor < self.ratio < self.gain * factor


class Rivals:
    """Argand's own way and a library's.

    Arguments:
        name: of what is computed; part of a file name.
        presumed: whether the own way is taken where nothing may be timed.
        gain: the own way is taken where it takes less than this share of the library's time.
        source: the file of the own kernels: what was timed with another text of it is not remembered.
    """

    def __init__(self, name: str, presumed: Callable[[], bool], gain: float, source: str = "") -> None:
        self.name = name
        self._source = source
        self._presumed = presumed
        self._gain = gain
        self._taken: dict[tuple[int, Hashable], bool] = {}  # by threads and kind
        self._trials: dict[tuple[int, Hashable], _Trial] = {}
        self._known_outcomes: dict[int, dict[str, bool]] = {}  # by threads and the digest of a kind: what is known
        self._unwritten: set[int] = set()  # numbers of threads for which more is known than is kept
        self._written = -math.inf
        at_end(self._write)

    def known(self) -> bool | None:
        """Whether the own way is faster here for some kind; None where nobody knows yet."""
        if torch.are_deterministic_algorithms_enabled():
            return self._presumed()
        outcomes = self._outcomes(torch.get_num_threads()).values()
        if any(outcomes):
            return True
        return False if len(outcomes) >= _KINDS else None

    def taken(self, kind: Hashable) -> bool | None:
        """Whether the own way is taken for a kind; None where nobody knows yet."""
        if torch.are_deterministic_algorithms_enabled():
            return self._presumed()
        place = torch.get_num_threads(), kind
        taken = self._taken.get(place)
        if taken is None:
            taken = self._outcomes(place[0]).get(_digest(kind))
            if taken is not None:
                self._taken[place] = taken
        return taken

    def run(self, own: Callable[[], None], library: Callable[[], None], kind: Hashable = None) -> None:
        """Compute by the faster way, or by one or both where that is not known; both write the same result.

        Arguments:
            kind: what the times depend on.
        """
        taken = self.taken(kind)
        if taken is None:
            return self._time(own, library, (torch.get_num_threads(), kind))
        return own() if taken else library()

    def _time(self, own: Callable[[], None], library: Callable[[], None], place: tuple[int, Hashable]) -> None:
        trial = self._trials.setdefault(place, _Trial(self._gain))
        if process.compiling() or trial.rests():
            return library()
        alone = place[0] == 1
        clock = time.thread_time if alone else time.perf_counter  # others may want the processor
        watch, begin = Watch(), clock()
        start = begin
        while start - begin <= _SHORT and not trial.rests():
            way = trial.turn()
            (own, library)[way]()
            end = clock()
            trial.note(way, end - start, watch.calm() or alone)
            if trial.is_over():
                return self._decide(place, trial.ratio)
            start = clock()
        return None

    def _decide(self, place: tuple[int, Hashable], ratio: float) -> None:
        threads, kind = place
        own_is_faster = self._taken[place] = ratio < self._gain
        self._trials.pop(place, None)
        self._outcomes(threads)[_digest(kind)] = own_is_faster
        self._unwritten.add(threads)
        if not self._trials or time.monotonic() > self._written + _BETWEEN:
            self._write()
        text = f"{self.name}: argand's own takes {ratio:.2f} of the library's time here"
        events.emit("autotuning", "runtime", text, product=self.name, chosen="own" if own_is_faster else "library")

    def _write(self) -> None:
        """Keep what is known: a first call decides some ten kinds, and each writing takes 0.3 to 12 ms."""
        for threads in list(self._unwritten):
            outcomes = self._known_outcomes[threads] = {**self._read(threads), **self._outcomes(threads)}
            if len(outcomes) <= _MOST_KINDS:
                texts = {name: "own" if own else "library" for name, own in outcomes.items()}
                cache.write_note(self._note(threads), texts)
        self._unwritten.clear()
        self._written = time.monotonic()

    def _outcomes(self, threads: int) -> dict[str, bool]:
        if threads not in self._known_outcomes:
            self._known_outcomes[threads] = self._read(threads)
        return self._known_outcomes[threads]

    def _read(self, threads: int) -> dict[str, bool]:
        note = cache.read_note(self._note(threads)) or {}
        return {name: each == "own" for name, each in note.items() if each in ("own", "library")}

    def _note(self, threads: int) -> str:
        text = _text_digest(self._source) if self._source else ""
        about = (self.name, processor.model(), torch.__version__, str(threads), f"v{cache.VERSION}", "calm", text)
        return f"rivals-{cache.digest(str(about))}"

    def forget(self) -> None:
        """What this process knows; notes stay."""
        self._taken.clear()
        self._trials.clear()
        self._known_outcomes.clear()
        self._unwritten.clear()


def _typical(times: list[float]) -> float:
    """The lower quartile: the least of many may be luck, and others want the processors in the longest ones."""
    return sorted(times)[(len(times) - 1) // 4]


@functools.cache
def _text_digest(name: str) -> str:
    return cache.digest(text_of(name))


def _digest(kind: Hashable) -> str:
    return cache.digest(str(kind))[:16]
