"""What capturing needs of the process: stack, memory, Python's own builtins. Where it lacks them, frames run eagerly,
and nothing fails that the program alone would get through.

A capture that runs out of stack halfway could also leave something of torch's undone: it is not begun near the limit.
"""

from __future__ import annotations

import sys

from argand.errors import ArgandError
from argand.graph import builtin_names

FRAMES = 250
"""Fewer Python frames than this below the limit: a frame runs eagerly."""


def can_capture() -> bool:
    """Whether there is stack for a capture, and the builtins that argand's own code calls are Python's."""
    return builtin_names.are_pythons() and stack_left(FRAMES)


def stack_left(frames: int) -> bool:
    """Whether at least so many Python frames fit below `sys.getrecursionlimit()`."""
    try:
        sys._getframe(max(sys.getrecursionlimit() - frames, 0))
    except ValueError:
        return True
    return False


def ran_out(error: BaseException) -> bool:
    """Whether an error that came up while capturing or compiling says only that this call has too little stack or
    memory left: the program on its own may get by with it.

    A RecursionError says so where the program itself took more than half of the stack.
    """
    inner: BaseException | None = getattr(error, "error", error)
    if isinstance(inner, ArgandError):
        inner = inner.__cause__
    if isinstance(inner, RecursionError):
        return not stack_left(sys.getrecursionlimit() // 2)
    return isinstance(inner, MemoryError)
