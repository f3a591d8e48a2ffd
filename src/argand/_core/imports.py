"""Forks beside imports: a module that another thread is importing stays locked in the child for ever."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from importlib import _bootstrap
from typing import Any

_SECONDS = 5.0  # an import that waits for the thread that forks would never end
# what argand and torch import when first needed, with what that imports
_PACKAGES = frozenset(("argand", "torch", "triton", "numpy", "sympy", "mpmath", "redis", "rich"))


@functools.cache
def wait_at_forks() -> None:
    """From now on a fork waits for other threads' imports of argand, torch and the standard library.

    The first call of a compiled function imports them for a second. A child that was forked meanwhile has the lock of
    a module that nobody goes on to import, and would wait for it at its own first call. A thread that begins to import
    between the look at the locks and the fork is late: its locks go in the child, which imports anew what that thread
    had begun.
    """
    os.register_at_fork(before=_wait, after_in_child=_begin_anew)


def _wait() -> None:
    end = time.monotonic() + _SECONDS
    if threading.active_count() > 1:
        time.sleep(0)  # other threads get the interpreter now, and not between the look below and the fork
    while any(_others()) and time.monotonic() < end:
        time.sleep(0.001)


def _begin_anew() -> None:
    for name in list(_others()):
        _locks().pop(name, None)
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            del sys.modules[name]


def _others() -> Iterator[str]:
    """The modules that a child will want, and other threads are importing."""
    me = threading.get_ident()
    for name, reference in list(_locks().items()):
        package = name.partition(".")[0]
        if package in _PACKAGES or package in sys.stdlib_module_names:
            lock = reference()
            if getattr(lock, "owner", None) not in (None, me) or _is_held(lock):
                yield name


def _is_held(lock: Any) -> bool:
    """Whether another thread is about to have a module's lock, or to give it back."""
    inner = getattr(lock, "lock", None)
    if inner is None or not inner.acquire(blocking=False):
        return inner is not None
    inner.release()
    return False


def _locks() -> dict[str, Any]:
    return getattr(_bootstrap, "_module_locks", {})
