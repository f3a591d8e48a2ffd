"""Libraries of kernels that a thread of their own has compiled, while argand goes on with what else is to be done."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from argand import threads
from argand.runtime import process, toolchain
from argand.runtime.library import Library

_Key = tuple[str, tuple[str, ...]]
_LONGEST_START = 0.03  # seconds: who waits for another process's compiler, say, goes on


@functools.cache
def _futures() -> dict[_Key, Future[Library]]:
    """This process's; a forked child has none of its threads."""
    return {}


def begin(source: str, parts: Sequence[str]) -> None:
    """Begin to compile what `library` will be asked for, and return when the compiler runs.

    Beside this thread, the other one would make that ready in ten times the time: it asks for the interpreter with each
    of thirty calls of the system, and gets it 5 ms later.

    Raises:
        ToolchainError: there is no compiler that works.
    """
    toolchain.find_toolchain()
    key = source, tuple(parts)
    if key in _futures():
        return
    runs = threading.Event()
    with (
        contextlib.suppress(RuntimeError),  # this process may have no more threads
        threads.bound(process.STARTED, runs.set),
    ):
        _futures()[key] = future = threads.begin(
            functools.partial(toolchain.load_text, source, parts=parts), "argand-kernels", forget=_futures().clear
        )
        future.add_done_callback(lambda _: runs.set())
        runs.wait(_LONGEST_START)


def running(source: str, parts: Sequence[str]) -> bool:
    """Whether `library` would wait for a compiler that was begun."""
    future = _futures().get((source, tuple(parts)))
    return future is not None and not future.done()


def library(source: str, parts: Sequence[str]) -> Library:
    """The library of a C++ text: the one that was begun, else it is compiled (or found) now.

    Raises:
        CppCompileError, ToolchainError: as `toolchain.load_text`.
    """
    future = _futures().pop((source, tuple(parts)), None)
    if future is not None:
        with contextlib.suppress(threads.Ending):  # the process ends, and this is what it does at its end
            return future.result()
    return toolchain.load_text(source, parts=parts)
