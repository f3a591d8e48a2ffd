"""Python's cyclic garbage collector, which waits while argand compiles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY = 10_000  # young objects
_MOST = 1_000_000  # objects that count as old and may be garbage, at most 60 MB of it


class _Process:
    """Fields:
    unlooked_at: how many objects were taken for old since garbage was looked for.
    frozen: whether the program has frozen objects. To count a million of them takes 0.1 s, so it is asked once.
    """

    unlooked_at = 0
    frozen = False


_process = _Process()


def _make_old(young: int) -> None:
    _process.unlooked_at += young
    if _process.unlooked_at > _MOST:
        gc.collect()
        _process.unlooked_at = 0
    gc.freeze()
    gc.unfreeze()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: compiling makes many objects that live, and each full collection walks
    the whole process (0.2 to 1 s with a model loaded).

    Where many were made they count as old at once: most live as long as what was compiled, and would otherwise bring
    about a full collection within the first call. To look for the garbage among them takes a tenth of a large graph's
    first call, so it waits until there can be much.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        young = gc.get_count()[0]
        if was_enabled and young > _MANY:
            _process.frozen = _process.frozen or gc.get_freeze_count() > 0
            if not _process.frozen:
                _make_old(young)
        if was_enabled:
            gc.enable()
