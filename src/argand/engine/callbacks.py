"""What code of the program asks the engine to call at the end of a backward (`queue_callback`).

A replay runs such code in runs of the engine that are parts of the backward, at whose ends the engine would call it
already: `torch.autograd.Variable._execution_engine` is stood in for while compiled autograd is on anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

Callback = Callable[[], object]


class Callbacks:
    """The engine, but that callbacks which a replay's thread queues wait for the replay's end.

    Arguments:
        engine: torch's.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._waiting: dict[int, list[Callback] | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def queue_callback(self, callback: Callback) -> None:
        """As the engine's."""
        waiting = self._waiting.get(threading.get_ident())
        if waiting is None:
            self.engine.queue_callback(callback)
        else:
            waiting.append(callback)

    @contextlib.contextmanager
    def into(self, waiting: list[Callback] | None) -> Iterator[None]:
        """Callbacks of this thread wait in a list; with None they are the engine's."""
        thread = threading.get_ident()
        before = self._waiting.get(thread)
        self._waiting[thread] = waiting
        try:
            yield
        finally:
            if before is None:
                del self._waiting[thread]
            else:
                self._waiting[thread] = before


@contextlib.contextmanager
def at_the_end() -> Iterator[None]:
    """Callbacks that this thread queues in the block are called behind it; none where it raises."""
    callbacks: Any = torch.autograd.Variable._execution_engine
    if not isinstance(callbacks, Callbacks):  # the program has put something else there
        yield
        return
    waiting: list[Callback] = []
    with callbacks.into(waiting):
        yield
        for callback in waiting:  # grows
            callback()


def by_the_engine() -> contextlib.AbstractContextManager[None]:
    """A backward within another one has callbacks of its own."""
    callbacks: Any = torch.autograd.Variable._execution_engine
    return callbacks.into(None) if isinstance(callbacks, Callbacks) else contextlib.nullcontext()
