"""Backends by name: ours, the user's, and torch's own."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, overload

from argand.backends import torch_compile_backends
from argand.errors import ConfigError

Backend = Callable[..., Callable[..., Any]]

QUANTIZATIONS = ("int8_weight_only", "int8_dynamic")

_BUILTIN = {
    "eager": ("argand.backends.eager", "eager"),
    "aot_eager": ("argand.backends.aot_eager", "aot_eager"),
    "native": ("argand.backends.native", "native"),
}


class _Registry:
    """Backends registered by users, in order of registration."""

    def __init__(self) -> None:
        self.user: dict[str, Backend] = {}


_registry = _Registry()


@overload
def register_backend(fn: Backend, *, name: str | None = None) -> Backend: ...
@overload
def register_backend(fn: None = None, *, name: str | None = None) -> Callable[[Backend], Backend]: ...
def register_backend(fn: Backend | None = None, *, name: str | None = None) -> Any:
    """Give a backend a name; usable as `@register_backend` and `@register_backend(name="mine")`.

    Arguments:
        fn: `(gm: fx.GraphModule, example_inputs: list[Tensor], **options) -> Callable`, as for torch.compile.
        name: its name, by default the function's own.

    Raises:
        ConfigError: the name belongs to a backend of argand, or `fn` cannot be called.
    """
    if fn is None:
        return lambda function: register_backend(function, name=name)
    if not callable(fn):
        raise ConfigError(f"a backend is a callable, not {type(fn).__name__}", remedy="pass a function of (gm, inputs)")
    if not isinstance(name, str | None):
        raise ConfigError(f"the name of a backend is a text, not {name!r}", remedy='register it with name="..."')
    chosen = name or getattr(fn, "__name__", "")
    if not chosen:
        raise ConfigError("this backend has no __name__", remedy='register it with name="..."')
    if chosen in _BUILTIN:
        raise ConfigError(f"{chosen!r} is a backend of argand", remedy="register yours under another name")
    _registry.user[chosen] = fn
    return fn


def list_backends(*, torch_backends: bool = False) -> list[str]:
    """Names that `lookup_backend` knows: argand's, then registered ones; with `torch_backends` also torch.compile's."""
    names = [*_BUILTIN, *sorted(_registry.user)]
    if torch_backends:
        names += [other for other in torch_compile_backends.torch_backend_names() if other not in names]
    return names


def quantization_of(options: Mapping[str, Any]) -> str:
    """Which quantization `options` of `argand.compile` ask for; "" for none.

    Raises:
        ConfigError: for one that there is not.
    """
    asked = options.get("quantization")
    if asked in (None, False, ""):
        return ""
    if asked not in QUANTIZATIONS:
        raise ConfigError(f"unknown quantization {asked!r}", remedy=f"known: {', '.join(QUANTIZATIONS)}")
    return str(asked)


def check_backend(backend: str | Backend, options: Mapping[str, Any] | None = None) -> None:
    """Refuse what `lookup_backend` does not know, and a wrong option of "native".

    A backend of argand's is imported when it first compiles.

    Raises:
        ConfigError: no backend has this name; an option has a value that there is not.
    """
    if backend == "native":
        quantization_of(options or {})
    if not isinstance(backend, str) or backend not in _BUILTIN:
        lookup_backend(backend)


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend of this name, or the callable itself.

    Raises:
        ConfigError: no backend has this name.
    """
    if not isinstance(backend, str):
        if callable(backend):
            return backend
        raise ConfigError(
            f"backend takes a name or a callable, not {type(backend).__name__}",
            remedy=f"known names: {', '.join(list_backends())}",
        )
    place = _BUILTIN.get(backend)
    if place is not None:
        module, attribute = place
        builtin: Backend = getattr(importlib.import_module(module), attribute)
        return builtin
    user = _registry.user.get(backend)
    if user is not None:
        return user
    of_torch = torch_compile_backends.torch_backend(backend)
    if of_torch is not None:
        return of_torch
    names = list_backends(torch_backends=True)
    close = difflib.get_close_matches(backend, names, n=2)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise ConfigError(f"unknown backend {backend!r}", remedy=f"{hint}known names: {', '.join(names)}")
