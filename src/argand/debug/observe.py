"""Where somebody can stand between a program and its compiled functions: `argand doctor` does, in its child processes.

`argand.compile` hands each compiled function, and each backend that is called, to the observer, if there is one.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from argand.backends.registry import Backend
from argand.capture.facts.code.directives import is_compiling
from argand.quick_dataclasses import dataclass


class Observer:
    """Looks at, or replaces, compiled functions and backends; this one leaves them as they are."""

    def function(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """What the program gets for `compiled`."""
        return compiled

    def backend(self, function: Backend, asked: str | Backend) -> Backend:
        """What compiles a captured graph; `asked` is what the program asked for."""
        return function


@dataclass(slots=True)
class Joint:
    """The place of the one observer."""

    observer: Observer | None = None


JOINT = Joint()


def stand_in(
    original: Callable[..., Any], call: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[..., Any]:
    """What a program gets for a compiled function: `call(args, kwargs)`, or the original where that is captured."""

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_compiling() else call(args, kwargs)

    stand_in.__dict__["_torchdynamo_orig_callable"] = original
    return stand_in


def code_of(function: Any) -> types.CodeType | None:
    """The code of a function or method; None for other callables."""
    code: types.CodeType | None = getattr(getattr(function, "__func__", function), "__code__", None)
    return code


def place_of(function: Any) -> str:
    """Where a function is defined, as "file:line"; "" where that is not known."""
    code = code_of(function)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
