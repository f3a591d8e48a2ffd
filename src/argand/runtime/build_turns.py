"""Turns of the processes of a job on one machine: one makes what all can load, the others wait for it.

A turn is the lock of a key's file in the disk cache. Whoever has it touches it while it lives, so that others do not
wait for a process that was stopped; they wait for nobody longer than `LONGEST`. What was waited for and is not there
then is made by each of them, at once. What nobody can load is marked in the file, and not waited for again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from argand import threads
from argand.errors import ArgandError
from argand.runtime import cache, kernel_directories

LONGEST = 60.0
"""Seconds that a process waits for another one's turn, at most."""

_BEAT = 0.5
_HEAD_START = 0.06
_CAPTURING = "argand.capture.driver.frame"
_USELESS = b"-"


@functools.cache
def _mine() -> set[str]:
    """Keys whose turn this process has: one of its threads does not wait for another."""
    return set()


@functools.cache
def _followed() -> set[str]:
    """Keys whose turn another process had."""
    return set()


def others() -> bool:
    """Whether this process is one of several of a job, which call the same functions at about the same time.

    Where a GPU is in use each has its own, and what is made for one is not for another.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or torch.cuda.is_initialized():
        return False
    return bool(c10d.get_world_size() > 1)


def held() -> bool:
    """Whether this process makes something now that others wait for."""
    return bool(_mine())


class Turn:
    """One turn.

    Arguments:
        waited: another process had it, which may have made what is wanted.
    """

    def __init__(self, waited: bool, descriptor: int = -1) -> None:
        self.waited = waited
        self._descriptor = descriptor

    def useless(self) -> None:
        """Nothing was made that another process can load: none shall wait for that again."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, _USELESS, 0)


@contextlib.contextmanager
def turn(key: str) -> Iterator[Turn | None]:
    """The turn to make what `key` stands for; None where this process makes it without waiting for anybody."""
    if not key or key in _mine() or not others():
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            taken = _taken(key, stack)
        except (OSError, ArgandError):  # no cache, so nothing that others could load
            taken = None
        yield taken


def _taken(key: str, stack: contextlib.ExitStack) -> Turn | None:
    path = cache.directory() / f"{key}.lock"
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size:
            return None
    _give_way(path)
    descriptor = stack.enter_context(kernel_directories.locked(path, 0.0))
    if descriptor is None:
        _followed().add(key)
        with kernel_directories.locked(path, kernel_directories.PATIENCE, LONGEST):
            return Turn(waited=True)
    _mine().add(key)
    stack.callback(_mine().discard, key)
    stack.enter_context(_beating())
    return Turn(waited=False, descriptor=descriptor)


def _give_way(path: Path) -> None:
    """Whoever has captured before goes first: another process would import the compiler while all wait for it."""
    if _followed() and _CAPTURING not in sys.modules:
        end = time.monotonic() + _HEAD_START
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.002)


@contextlib.contextmanager
def _beating() -> Iterator[None]:
    """Meanwhile, those who wait are told that this process gets on."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_BEAT):
            kernel_directories.beat()

    beating = None
    with contextlib.suppress(RuntimeError):  # this process may have no more threads
        beating = threads.begin(beat, "argand-turn", stop=over.set)
    try:
        yield
    finally:
        over.set()
        if beating is not None:
            beating.result()
