"""Threads of argand's own, and the end of the process, which waits for them.

In: work. Out: a future of its result. Python cancels a daemon thread that goes on while the interpreter ends, at the
first moment at which it asks for the interpreter; a frame of C++ there takes the whole process along (SIGABRT). So a
process that ends tells argand's threads to, kills the compilers that they wait for, and waits for them itself.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from argand.quick_dataclasses import dataclass

_T = TypeVar("_T")
_LONGEST_END = 5.0  # seconds that the end of a process waits for its threads
_TICK = 0.01


@contextlib.contextmanager
def bound(variable: contextvars.ContextVar[_T], value: _T) -> Iterator[None]:
    """Inside, a variable of this context has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Ending(SystemExit):
    """The process ends, and so does this thread. Nobody takes it for a failure of what the thread did."""


@dataclass(slots=True, eq=False)
class _Started:
    """A thread.

    Arguments:
        stop: has it end soon.
        forget: has others in a forked child, which has no such thread, not wait for it.
    """

    thread: threading.Thread
    stop: Callable[[], object] | None
    forget: Callable[[], object] | None


class _Threads:
    """This process's.

    Fields:
        alive: those that have not done their work.
        at_end: what ends what they wait for; called until they have ended.
        ender: the thread that ends the process, 0 until then.
    """

    def __init__(self) -> None:
        self.alive: set[_Started] = set()
        self.at_end: list[Callable[[], object]] = []
        self.ender = 0
        self._registered = False
        os.register_at_fork(after_in_child=self._forget)

    def register(self) -> None:
        """See to the end of this process."""
        if not self._registered:
            self._registered = True
            atexit.register(self.end)

    def end(self) -> None:
        """Have all threads end."""
        self.ender = threading.get_ident()
        for one in list(self.alive):
            if one.stop is not None:
                one.stop()
        until = time.monotonic() + _LONGEST_END
        while True:
            alive = list(self.alive)
            for do in self.at_end:
                do()
            if not alive or time.monotonic() > until:
                return
            alive[0].thread.join(_TICK)

    def _forget(self) -> None:
        """In a forked child."""
        left = list(self.alive)
        self.alive.clear()
        self.ender = 0
        for one in left:
            if one.forget is not None and one.thread is not threading.current_thread():
                one.forget()


_threads = _Threads()


def begin(
    work: Callable[[], _T],
    name: str,
    *,
    context: contextvars.Context | None = None,
    stop: Callable[[], object] | None = None,
    forget: Callable[[], object] | None = None,
) -> Future[_T]:
    """Do something in a thread of its own.

    Arguments:
        name: of the thread.
        context: in which it is done; None is a copy of this one.
        stop: called when the process ends.
        forget: called in a forked child, while the thread has not ended: nobody sets the future there.

    Raises:
        RuntimeError: this process may have no more threads, or is ending.
    """
    if _threads.ender:
        raise RuntimeError("the process is ending")
    run = (contextvars.copy_context() if context is None else context).run
    future: Future[_T] = Future()

    def work_it() -> None:
        try:
            future.set_result(run(work))
        except BaseException as error:  # whatever it is: who waits gets it
            future.set_exception(error)
        finally:
            _threads.alive.discard(started)

    started = _Started(threading.Thread(target=work_it, name=name, daemon=True), stop, forget)
    _threads.register()
    _threads.alive.add(started)
    try:
        started.thread.start()
    except BaseException:
        if not started.thread.is_alive():
            _threads.alive.discard(started)
        raise
    return future


def working() -> bool:
    """Whether one of these threads does what ends by itself: it compiles, and takes a processor."""
    return any(one.stop is None for one in list(_threads.alive))


def at_end(do: Callable[[], object]) -> None:
    """Have something done when the process ends, again and again until argand's threads have ended."""
    _threads.register()
    _threads.at_end.append(do)


def check_ending() -> None:
    """What takes long asks now and then whether to go on.

    Raises:
        Ending: the process ends; not in the thread that ends it, where the program may have more to do.
    """
    if _threads.ender and _threads.ender != threading.get_ident():
        raise Ending
