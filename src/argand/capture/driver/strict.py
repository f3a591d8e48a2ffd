"""`argand.error_on_graph_break`: graph breaks are errors in a part of a program.

The setting is an attribute of one object, so that captured code that enters the context manager reads and writes it
as it does any other object: with a guard, and replayed after the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from argand.config import config
from argand.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])


class _Setting:
    """Whether a graph break is an error here; None: as `config.error_on_graph_break` says."""

    def __init__(self) -> None:
        self.error: bool | None = None


SETTING = _Setting()


class error_on_graph_break:
    """Context manager and decorator: while active, a graph break raises `errors.Unsupported`, or (False) does not.

    Works around calls of compiled functions, and inside compiled code for a part of it. `fullgraph=True` is stronger:
    there every graph break is an error. Code that was compiled before is not compiled again.

    Arguments:
        error: whether graph breaks are errors.

    Raises:
        ConfigError: `error` is not a bool.
    """

    def __init__(self, error: bool) -> None:
        if error is not True and error is not False:
            raise ConfigError(
                f"error_on_graph_break takes True or False, not {error!r}",
                remedy="write `with argand.error_on_graph_break(True):` or `@argand.error_on_graph_break(True)`",
            )
        self.error = error
        self.before: list[bool | None] = []

    def __enter__(self) -> None:
        self.before.append(SETTING.error)
        SETTING.error = self.error

    def __exit__(self, *exc: object) -> None:
        SETTING.error = self.before.pop()

    def __call__(self, fn: F) -> F:
        error = self.error

        @functools.wraps(fn)
        def wrapper(*args: object, **kwargs: object) -> object:
            with error_on_graph_break(error):
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def wanted(overlay: Callable[[object, str], object] | None = None) -> bool:
    """Whether a graph break is an error at this moment.

    Arguments:
        overlay: reads an attribute that captured code wrote, or gives something that is neither bool nor None.
    """
    value: object = SETTING.error
    if overlay is not None:
        written = overlay(SETTING, "error")
        if written is None or written is True or written is False:
            value = written
    return bool(config.error_on_graph_break) if value is None else bool(value)


def told_apart(request: str) -> str:
    """The name of stored outcomes (`Region.stored_as`): those from where a graph break is an error are others."""
    return f"{request}, no breaks" if request and wanted() else request


def reset() -> None:
    """Back to the setting of config."""
    SETTING.error = None
