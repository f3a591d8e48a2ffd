"""Where somebody can stand between a program and its compiled functions: `argand doctor` does, in its child processes.

`argand.compile` hands each compiled function, and each backend that is called, to the observer, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from argand.backends.registry import Backend


class Observer(Protocol):
    """Looks at, or replaces, compiled functions and backends."""

    def function(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """What the program gets for `compiled`."""

    def backend(self, function: Backend, asked: str | Backend) -> Backend:
        """What compiles a captured graph; `asked` is what the program asked for."""


@dataclass(slots=True)
class Joint:
    """The place of the one observer."""

    observer: Observer | None = None


JOINT = Joint()
