"""Limits on how long capturing a frame and preparing a graph may take.

`config.capture_time_limit` is for capture, which can end a graph anywhere; `config.prepare_time_limit` is for what a
backend does with the graph that capture gave it, and grows with the graph. Time is the thread's CPU time: a machine
that is busy with other things does not count, nor do compilers that run as processes. Whoever does work that grows with
the program asks `check` now and then.
"""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from argand.config import config
from argand.graph.compat import DispatchMode
from argand.graph.origin import NodeOrigin
from argand.graph.plain_checks import with_plain_checks
from argand.threads import bound

PREPARED_IN_ONE: Final = 1000
"""Operations of a graph that `config.prepare_time_limit` is meant for; a larger graph has more time in proportion."""


class OutOfTime(BaseException):
    """The limit is exceeded. Not an Exception: code that tries things out must not take it for their failure.

    Arguments:
        reason: where the time went, as the end of a sentence; of preparations only.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class _Limit:
    """One limit, and where the time goes.

    Arguments:
        seconds: of the whole.
        each: of the work on any one operation.
        operations: how many there are.
    """

    __slots__ = ("_begun", "_early", "_lines", "_running", "_start", "_taken", "each", "end", "operations", "seconds")

    def __init__(self, seconds: float, each: float = float("inf"), operations: int = 0) -> None:
        self.seconds = seconds
        self.each = each
        self.operations = operations
        self._start = self._begun = time.thread_time()
        self.end = self._start + seconds  # or when the operation at hand has taken too long
        self._running: NodeOrigin | None = None
        self._taken: dict[str, float] = {}
        self._lines: dict[str, str] = {}
        self._early = 0.0  # by a clock that is read faster: until then the end cannot have come

    def exceeded(self) -> bool:
        """Whether the end has come."""
        if time.monotonic() < self._early:
            return False
        left = self.end - time.thread_time()
        self._early = time.monotonic() + left
        return left < 0

    def begin(self, operation: NodeOrigin | None) -> None:
        """What follows is work on `operation`, until the next one is begun."""
        now = time.thread_time()
        self._leave(now)
        self._running = operation
        self.end = self._start + self.seconds
        if operation is not None:
            self.end = min(self.end, now + self.each - self._taken.get(operation.source_node, 0.0))
        self._early = time.monotonic() + self.end - now

    def late(self) -> OutOfTime:
        """The error, which names the operation that took too long, or most of the time, if there is one."""
        now = time.thread_time()
        self._leave(now)
        spent = now - self._start
        name = max(self._taken, key=lambda each: self._taken[each], default="")
        taken = self._taken.get(name, 0.0)
        if taken < self.each and 2 * taken < spent:
            return OutOfTime(f"{self.seconds:.3g} s for {self.operations:,} operations were not enough")
        line = f" ({self._lines[name]})" if self._lines.get(name) else ""
        return OutOfTime(f"{taken:.3g} s of {spent:.3g} s went to the operation {name}{line}")

    def _leave(self, now: float) -> None:
        if self._running is not None:
            name = self._running.source_node
            self._lines[name] = self._running.user_line
            self._taken[name] = self._taken.get(name, 0.0) + now - self._begun
        self._begun = now


_limit: ContextVar[_Limit | None] = ContextVar("argand_time_limit", default=None)


def limited(seconds: float) -> AbstractContextManager[None]:
    """Inside, `check` raises once this thread has worked for so many seconds.

    Arguments:
        seconds: 0 is no limit. Limits that this one lies inside of do not count meanwhile.
    """
    return bound(_limit, _Limit(seconds) if seconds > 0 else None)


def preparing(operations: int) -> AbstractContextManager[None]:
    """Inside, `check` raises once preparing a graph of so many operations took longer than `config.prepare_time_limit`
    allows, or one of them took as long as the setting says."""
    each = float(config.prepare_time_limit)
    limit = _Limit(each * max(1.0, operations / PREPARED_IN_ONE), each, operations) if each > 0 else None
    return bound(_limit, limit)


def begin(operation: NodeOrigin | None) -> None:
    """What this thread does from now on is work on `operation`; None is none, or all of them.

    Raises:
        OutOfTime: as `check`.
    """
    limit = _limit.get()
    if limit is not None:
        check()
        limit.begin(operation)


def check() -> None:
    """Go on, or not.

    Raises:
        OutOfTime: the limit is exceeded.
    """
    limit = _limit.get()
    if limit is not None and limit.exceeded():
        raise limit.late()


class _CheckedCalls(TorchFunctionMode):
    """Asks at every torch function: metadata written in Python calls them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check()
        return func(*args, **(kwargs or {}))


class _CheckedOps(DispatchMode):
    """Asks at every ATen operator: functions that are made of others call them, from C++ too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check()
        return func(*args, **(kwargs or {}))


def run_checked(func: Any, args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)`, which may be made of any number of steps."""
    if _limit.get() is None or torch._C._len_torch_dispatch_stack():
        return with_plain_checks(func, args, kwargs)
    with _CheckedCalls(), _CheckedOps():
        return with_plain_checks(func, args, kwargs)


def took_too_long(what: str, late: OutOfTime) -> str:
    """Why something runs with eager's kernels; warns, too."""
    reason = f"preparing {what} took more CPU time than config.prepare_time_limit allows: {late.reason}"
    warnings.warn(f"argand: {reason}: it runs with eager's kernels.", stacklevel=2)
    return reason
