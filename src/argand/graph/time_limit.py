"""The limit on how long capturing or compiling one thing may take (`config.capture_time_limit`).

Time is the thread's CPU time: a machine that is busy with other things does not count, nor do compilers that run as
processes. Whoever does work that grows with the program asks `check` now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_end: ContextVar[float] = ContextVar("argand_time_limit", default=float("inf"))


class OutOfTime(BaseException):
    """The limit is exceeded. Not an Exception: code that tries things out must not take it for their failure."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Inside, `check` raises once this thread has worked for so many seconds.

    Arguments:
        seconds: 0 is no limit. Limits that this one lies inside of do not count meanwhile.
    """
    token = _end.set(time.thread_time() + seconds if seconds > 0 else float("inf"))
    try:
        yield
    finally:
        _end.reset(token)


def check() -> None:
    """Go on, or not.

    Raises:
        OutOfTime: the limit is exceeded.
    """
    end = _end.get()
    if end != float("inf") and time.thread_time() > end:
        raise OutOfTime


class _CheckedCalls(TorchFunctionMode):
    """Asks at every torch function: metadata written in Python calls them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check()
        return func(*args, **(kwargs or {}))


class _CheckedOps(TorchDispatchMode):
    """Asks at every ATen operator: functions that are made of others call them, from C++ too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as for the tracer: torch must not wrap this in a helper that imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check()
        return func(*args, **(kwargs or {}))


def run_checked(func: Any, args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)`, which may be made of any number of steps."""
    if _end.get() == float("inf") or torch._C._len_torch_dispatch_stack():
        return func(*args, **kwargs)
    with _CheckedCalls(), _CheckedOps():
        return func(*args, **kwargs)
