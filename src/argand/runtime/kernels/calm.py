"""Whether what a call of this process took says how long it takes: nobody else had the processors meanwhile.

The threads of a team wait for each other, so a call of half a millisecond takes fifty where one of them has to wait for
a processor; the least of five such times is still a hundred times what it should be. The system counts how often it
took a processor from a thread. What waits for something else (the interpreter, memory) is not counted: so a time is
believed only once two calls took about as long.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

_ALIKE = 1.25  # two times that differ by less than this factor are about the same


class Watch:
    """Tells after each of some calls, one after the other, whether it was left alone."""

    __slots__ = ("_calm", "_taken")

    def __init__(self) -> None:
        self._taken = taken_away()
        self._calm = True

    def calm(self) -> bool:
        """Whether no processor was taken from this process since this was last asked, or in the time before that: a
        thread that lost one there may have had none when the call began."""
        before, self._taken = self._taken, taken_away()
        calm = before == self._taken
        both, self._calm = calm and self._calm, calm
        return both


def taken_away() -> int:
    """How often a thread of this process, which could have gone on, lost its processor to another."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def is_quiet() -> bool:
    """Whether most of the processors have had nothing to do for about a minute."""
    try:
        return os.getloadavg()[0] < 0.5 * (os.cpu_count() or 1)
    except OSError:
        return False


def is_known(times: Sequence[float]) -> bool:
    """Whether the least of the times is what a call takes: another one took about as long."""
    least = sorted(times)[:2]
    return len(least) == 2 and least[1] <= _ALIKE * least[0]
