"""Forks beside imports: a module that another thread is importing stays locked in the child for ever."""

from __future__ import annotations

import functools
import os
import threading
import time
from importlib import _bootstrap

_SECONDS = 5.0  # an import that waits for the thread that forks would never end
_PACKAGES = ("argand", "torch", "triton", "numpy", "sympy", "redis")  # what argand and torch import when first needed


@functools.cache
def wait_at_forks() -> None:
    """From now on a fork waits for other threads' imports of argand and torch.

    The first call of a compiled function imports both for a second. A child that was forked meanwhile has the lock of
    a module that nobody goes on to import, and would wait for it at its own first call.
    """
    os.register_at_fork(before=_wait)


def _wait() -> None:
    end = time.monotonic() + _SECONDS
    if threading.active_count() > 1:
        time.sleep(0)  # other threads get the interpreter now, and not between the look below and the fork
    while _others() and time.monotonic() < end:
        time.sleep(0.001)


def _others() -> bool:
    """Whether another thread is importing a module that a child will want."""
    me = threading.get_ident()
    for name, reference in list(getattr(_bootstrap, "_module_locks", {}).items()):
        owner = getattr(reference(), "owner", None)
        if owner is not None and owner != me and name.partition(".")[0] in _PACKAGES:
            return True
    return False
