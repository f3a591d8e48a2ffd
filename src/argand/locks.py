"""Locks that a forked child can take: no thread that held one of them lives on there."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any


def fork_safe_lock() -> Any:
    """A `threading.RLock` that is free in a forked child, unless the thread that forked holds it."""
    lock: Any = threading.RLock()
    _locks().add(lock)
    return lock


@functools.cache
def _locks() -> weakref.WeakSet[Any]:
    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def free() -> None:
        for lock in list(known):
            if not lock._is_owned():
                lock._at_fork_reinit()

    os.register_at_fork(after_in_child=free)
    return known
