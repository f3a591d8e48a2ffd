"""Libraries of kernels that a thread of their own has compiled, while argand goes on with what else is to be done."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread

from argand.runtime import toolchain
from argand.runtime.library import Library

_Key = tuple[str, tuple[str, ...]]


@functools.cache
def _futures() -> dict[_Key, Future[Library]]:
    """This process's; a forked child has none of its threads."""
    futures: dict[_Key, Future[Library]] = {}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=futures.clear)
    return futures


def begin(source: str, parts: Sequence[str]) -> None:
    """Begin to compile what `library` will be asked for.

    Raises:
        ToolchainError: there is no compiler that works.
    """
    toolchain.find_toolchain()
    key = source, tuple(parts)
    if key in _futures():
        return
    future: Future[Library] = Future()

    def compile_it() -> None:
        try:
            future.set_result(toolchain.load_text(source, parts=parts))
        except BaseException as error:  # whatever it is: who waits gets it
            future.set_exception(error)

    _futures()[key] = future
    try:
        Thread(target=contextvars.copy_context().run, args=(compile_it,), name="argand-kernels", daemon=True).start()
    except RuntimeError:  # this process may have no more threads
        _futures().pop(key, None)


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
    return toolchain.load_text(source, parts=parts) if future is None else future.result()
