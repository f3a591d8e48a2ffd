"""`argand.substitute_in_graph`: a Python function that capture inlines in the place of another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from argand._core import _C
from argand.capture.driver import strict
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.torch_functions import torch_calls
from argand.errors import ConfigError
from argand.outcomes import store

F = TypeVar("F", bound=Callable[..., object])


def _error_on_graph_break(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch's context manager of this name, in captured code: argand's, which means the same."""
    return state.interpreter.call(strict.error_on_graph_break, args, kwargs)


torch_calls.enter_late({"_dynamo.decorators.error_on_graph_break": _error_on_graph_break})


native_handlers.function(_C.set_regions_enabled)(
    native_handlers.breaking(
        "change of the stance",
        "argand.set_stance changes what every compiled function does, which must happen at each call.",
        "Set the stance around the call of the compiled function.",
    )
)


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
