"""Libraries of kernels that a thread of their own has compiled, while argand goes on with what else is to be done."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from concurrent.futures import Future

from argand import threads
from argand.runtime import toolchain
from argand.runtime.library import Library

_Key = tuple[str, tuple[str, ...]]


@functools.cache
def _futures() -> dict[_Key, Future[Library]]:
    """This process's; a forked child has none of its threads."""
    return {}


def begin(source: str, parts: Sequence[str]) -> None:
    """Begin to compile what `library` will be asked for.

    Raises:
        ToolchainError: there is no compiler that works.
    """
    toolchain.find_toolchain()
    key = source, tuple(parts)
    if key in _futures():
        return
    with contextlib.suppress(RuntimeError):  # this process may have no more threads
        _futures()[key] = threads.begin(
            functools.partial(toolchain.load_text, source, parts=parts), "argand-kernels", forget=_futures().clear
        )


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
