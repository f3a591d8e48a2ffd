"""Python's cyclic garbage collector, which waits while argand compiles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: compiling makes many objects that live, and each full collection walks
    the whole process (0.2 to 1 s with a model loaded)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
