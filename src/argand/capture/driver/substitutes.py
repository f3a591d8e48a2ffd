"""`argand.substitute_in_graph`: a Python function that capture inlines in the place of another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from argand.capture.driver import frame as _  # noqa: F401 - enters the handlers, of which one is replaced
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.objects.call_protocol import native_handlers
from argand.errors import ConfigError
from argand.outcomes import store

F = TypeVar("F", bound=Callable[..., object])


def substitute_in_graph(original: Function, *, skip_signature_check: bool = False) -> Callable[[F], F]:
    """Make captured code run a Python function in the place of `original`, typically one that is written in C.

    ::

        @argand.substitute_in_graph(operator.indexOf)
        def index_of(a, b, /):
            for i, item in enumerate(a):
                if item is b or item == b:
                    return i
            raise ValueError("sequence.index(x): x not in sequence")

    Outside of captured code `original` stays as it is; the two must give the same answers. Functions that were compiled
    before are not compiled again.

    Arguments:
        original: the function to replace, found by identity.
        skip_signature_check: accept a replacement whose parameters are named or ordered otherwise.

    Raises:
        ConfigError: not functions, or their parameters differ.
    """
    if not callable(original) or isinstance(original, type):
        raise ConfigError(
            f"substitute_in_graph takes a function, not {original!r}", remedy="name the function to be replaced"
        )

    def register(replacement: F) -> F:
        if not inspect.isfunction(replacement):
            raise ConfigError(
                f"the replacement of {original!r} is not a Python function but {replacement!r}",
                remedy="write it with def: capture inlines it",
            )
        if not skip_signature_check:
            _check_signatures(original, replacement)

        def call(interp: Any, fn: Function, args: list[object], kwargs: Kwargs) -> object:
            return interp.call(replacement, args, kwargs)

        native_handlers.replace_function(original, call)
        store.STORE.substituted = True
        return replacement

    return register


def _check_signatures(original: Function, replacement: Function) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):
        return  # C functions need not tell
    given = inspect.signature(replacement)
    if [(p.name, p.kind) for p in wanted.parameters.values()] != [(p.name, p.kind) for p in given.parameters.values()]:
        raise ConfigError(
            f"{getattr(replacement, '__name__', replacement)}{given} does not take the parameters of "
            f"{getattr(original, '__name__', original)}{wanted}",
            remedy="give it the same parameters, or pass skip_signature_check=True",
        )
