"""How long plain Python is interpreted before it is left to CPython.

Interpreting costs a hundred times what running does, and pays off through the operations on tensors that it records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from argand.bytecode.per_code import PerCode
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Function, Kwargs
from argand.config import config
from argand.errors import GraphBreak, graph_break
from argand.graph import time_limit

QUIET: Final = 10_000
"""Rounds of loops and calls without an operation on a tensor."""
_RESTARTED: Final = 3 * QUIET
OUT_OF_TIME: Final = "capture takes too long"
LIMIT: Final = 200_000
"""Rounds and calls in all."""


class Clock:
    """CPU time that the attempts at one frame may still take.

    The first time that it runs out the graph breaks where it did. To get there again the next attempts have twice the
    time; when that is over too, the frame runs eagerly.
    """

    __slots__ = ("_left", "_ran_out")

    def __init__(self) -> None:
        self._left = float(config.capture_time_limit)
        self._ran_out = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """One attempt.

        Raises:
            GraphBreak: the time is over.
        """
        if self._left == 0:
            yield
            return
        begin = time.thread_time()
        try:
            with time_limit.limited(self._left):
                yield
        except time_limit.OutOfTime:
            raise out_of_time("", skip_frame=True) from None
        except GraphBreak as stop:
            if stop.reason.kind == OUT_OF_TIME:
                stop.skip_frame = stop.skip_frame or self._ran_out
                self._ran_out, self._left = True, 2 * float(config.capture_time_limit)
                begin = time.thread_time()
            raise
        finally:
            self._left = max(self._left - (time.thread_time() - begin), 0.001)


class Patience:
    """Counts rounds of loops and calls of one capture.

    Arguments:
        endless: the function must be captured whole, however long that takes.
    """

    __slots__ = ("_checked", "_number", "_rounds", "_tensors", "endless", "left")

    def __init__(self) -> None:
        self.endless = False
        self.left = QUIET
        self._checked = QUIET
        self._rounds = 0
        self._tensors = 0
        self._number = 0

    @property
    def spent(self) -> int:
        """Rounds and calls so far."""
        return self._rounds + self._checked - self.left

    def check(self, number: int, frames: list[Frame], tensors: int, tedious: PerCode[bool]) -> None:
        """As many rounds as were left have gone by.

        Arguments:
            number: of the root instruction that is being executed.
            frames: that are being interpreted.
            tensors: how many there are.
            tedious: gets the code that nothing came of.

        Raises:
            GraphBreak: nothing came of them. It breaks at a call, which is captured for itself then; a loop of the root
                frame's own runs eagerly, with what it calls looked at.
        """
        self._rounds += self._checked
        if self._rounds >= LIMIT:
            raise graph_break(
                kind="loop too long",
                explanation=f"Loops of this function run more than {LIMIT:,} rounds, too many to unroll.",
                skip_frame=True,
            )
        own = number - self._number
        if tensors == self._tensors and not self.endless:
            if own < QUIET and len(frames) > 1:
                tedious.set(frames[1].code, True)
            raise _long_stretch(skip_frame=own >= QUIET)
        self._tensors, self._number = tensors, number
        self.left = self._checked = QUIET


def out_of_time(where: str, skip_frame: bool = False) -> GraphBreak:
    """The break where `config.capture_time_limit` is exceeded.

    Arguments:
        where: the torch function that was being called.
    """
    place = f", up to the call of {where}" if where else ""
    return graph_break(
        kind=OUT_OF_TIME,
        context=where,
        explanation=f"Capturing this function took longer than {config.capture_time_limit:g} s of CPU time "
        f"(config.capture_time_limit){place}.",
        hints=("Call it outside the compiled function.", "Raise argand.config.capture_time_limit."),
        skip_frame=skip_frame,
    )


def check_restarts(spent: int, tensors: int) -> None:
    """Before a capture starts again because numbers or sizes were found to matter.

    Arguments:
        spent: rounds and calls of all attempts.
        tensors: how many there were in the last.

    Raises:
        GraphBreak: enough was tried.
    """
    if spent > _RESTARTED and not tensors:
        raise _long_stretch(skip_frame=True)


def break_off(interp: object, fn: Function, args: list[Any], kwargs: Kwargs) -> object:
    """Policy for calls of a function that took too long before: it is not inlined again."""
    raise _long_stretch(skip_frame=False)


def _long_stretch(skip_frame: bool) -> GraphBreak:
    return graph_break(
        kind="long stretch of plain Python",
        explanation=f"{QUIET:,} rounds of loops and calls went by without an operation on a tensor: interpreting "
        "them costs more than compiling could save.",
        skip_frame=skip_frame,
    )
