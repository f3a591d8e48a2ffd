"""Runs that are made again: to see what eager runs agree on, and whether a fault shows in every run."""

from __future__ import annotations

import math
from collections.abc import Callable

from argand.debug.doctor.child import Mode
from argand.debug.doctor.records import Difference, Run
from argand.quick_dataclasses import dataclass

ONE_THREAD = Mode("with kernels in one thread", settings={"cpp.threads": 1})
THREADS = "Only runs whose kernels use several threads go wrong: with one thread (config.cpp.threads = 1) it is right."
_VARIANTS = (
    Mode("eager, once more", eager=True, shaken=True),
    Mode("eager, rounded otherwise", eager=True, shaken=True, nudge=1),
    Mode("eager, rounded otherwise again", eager=True, shaken=True, nudge=2),
)
_ORDER = [Mode(f"eager, once more ({number})", eager=True, shaken=True) for number in range(2, 7)]
_ENDS = ("crash", "hang", "out of memory", "C++ compile error", "leak")  # kinds that no eager run can explain
_AGAIN, _SECONDS = 3, 60.0  # compiled runs after the first one, and the time for them
_MOST = 10  # compiled runs in all, where some differ and others do not
_MISSED = 0.02  # the chance to take a fault for gone because it did not show in any of some runs
_LEAST, _RUNS = 3, 20


def with_variants(eager: Run, difference: Difference, run: Callable[[Mode], Run]) -> None:
    """Give an eager run others to compare it with, where they can explain a difference.

    Arguments:
        difference: the difference.
        run: makes a run.
    """
    if difference.kind in _ENDS or eager.variants:
        return
    for mode in _VARIANTS:
        variant = run(mode)
        if variant.outcome.kind not in ("hung", "crashed", "memory") and variant.outcome.failed <= eager.outcome.failed:
            eager.variants.append(variant)


def with_orders(eager: Run, difference: Difference, run: Callable[[Mode], Run]) -> bool:
    """The same for what depends on where objects lie; whether there are more variants now."""
    kind = difference.mismatch.kind if difference.mismatch is not None else ""
    if difference.kind in _ENDS or kind in ("value", "nan", "inf") or len(eager.variants) > len(_VARIANTS):
        return False
    eager.variants += [variant for variant in map(run, _ORDER) if variant.outcome.failed <= eager.outcome.failed]
    return True


@dataclass(slots=True)
class Tally:
    """How many of some compiled runs differ from the eager one."""

    failed: int = 1
    runs: int = 1

    @property
    def flaky(self) -> bool:
        return 0 < self.failed < self.runs

    @property
    def needed(self) -> int:
        """Runs after which a fault that did not show is hardly there any more."""
        if not self.flaky:
            return _LEAST
        return min(_RUNS, max(_LEAST, math.ceil(math.log(_MISSED) / math.log1p(-self.failed / self.runs))))

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs} runs"


def again(seconds: float) -> int:
    """How often a run that takes so long is made again."""
    return max(1, min(_AGAIN, int(_SECONDS / max(seconds, 0.1))))


def tally(counted: Tally, difference: Difference, seconds: float, differs: Callable[[], bool]) -> None:
    """Make the compiled run again, some times.

    Arguments:
        counted: counts what was run already, and what is run now.
        difference: how the first one differed.
        seconds: that one run may take; a program that hangs is run once more only.
        differs: makes a run; whether it differs too.
    """
    most = 2 if difference.kind == "hang" else 1 + again(seconds)
    while counted.runs < (_MOST if counted.flaky else most):
        counted.runs += 1
        counted.failed += differs()
