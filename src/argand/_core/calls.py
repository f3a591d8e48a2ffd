"""Calls that nothing can interrupt halfway through their beginning or end: the core makes them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from argand._core import _C

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def uncaptured(fn: Callable[..., T], /, *args: Any) -> T:
    """`fn(*args)`; no frame is captured, though a compiled function may be running."""
    result: T = _C.run_with_callback(None, None, fn, args)
    return result


def locked(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that holds `self.lock` while it runs. Unlike with a `with` block, an exception from outside (Ctrl-C) can
    never leave the lock held. Arguments are positional."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> T:
        return _C.call_locked(self.lock, method, self, *args)

    return call  # type: ignore[return-value]


@contextlib.contextmanager
def capture_off() -> Iterator[None]:
    """No frame is captured inside, though a compiled function may be running. For tools: `uncaptured` is safer."""
    before = _C.set_callback(None, None)
    try:
        yield
    finally:
        _C.set_callback(*before)
