"""Python's cyclic garbage collector, which waits while argand compiles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY = 10_000  # young objects


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: compiling makes many objects that live, and each full collection walks
    the whole process (0.2 to 1 s with a model loaded).

    Where many were made, what is garbage of the young is freed at the end, and the rest counts as old at once: it lives
    as long as what was compiled, and would otherwise bring about a full collection within the first call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled and gc.get_count()[0] > _MANY and not gc.get_freeze_count():
            gc.collect(0)
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
