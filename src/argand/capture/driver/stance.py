"""`argand.set_stance`: what compiled functions do for a while, without changing them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from argand._core import _C
from argand.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

STANCES = {
    "default": "compile as usual",
    "force_eager": "compiled functions run eagerly, compiled code is kept for later",
    "eager_on_recompile": "compiled code is used where it fits; everything else runs eagerly, nothing is compiled",
    "fail_on_recompile": "compiled code is used where it fits; everything else is an error",
}


class _Current:
    """The stance of the process."""

    def __init__(self) -> None:
        self.name = "default"

    def set(self, name: str) -> str:
        before, self.name = self.name, name
        _C.set_regions_enabled(name != "force_eager")
        return before


CURRENT = _Current()


class set_stance:
    """Set what compiled functions do: `argand.set_stance("force_eager")`, as context manager, decorator or plain call.

    "default": compile as usual. "force_eager": run everything eagerly. "eager_on_recompile": use the compiled code that
    exists, run eagerly what it does not fit. "fail_on_recompile": the same, but raise `errors.RecompileForbidden`.
    The stance is the process's; it is not to be changed from within compiled code.

    Raises:
        ConfigError: no stance has this name.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            known = "; ".join(f'"{name}": {what}' for name, what in STANCES.items())
            raise ConfigError(f"unknown stance {stance!r}", remedy=f"known stances: {known}")
        self.stance = stance
        self.before = CURRENT.set(stance)

    def __enter__(self) -> None:
        CURRENT.set(self.stance)

    def __exit__(self, *exc: object) -> None:
        CURRENT.set(self.before)

    def __call__(self, fn: F) -> F:
        CURRENT.set(self.before)  # a decorator sets nothing by itself
        stance = self.stance

        @functools.wraps(fn)
        def wrapper(*args: object, **kwargs: object) -> object:
            with set_stance(stance):
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def reset() -> None:
    CURRENT.set("default")
