"""What users tell capture about functions and tensors; read by the interpreter, harmless outside compiled code."""

from __future__ import annotations

from typing import Any, TypeVar

from argand.errors import ConfigError

T = TypeVar("T")

DISABLED = "_argand_disabled"
ALLOWED = "_argand_allowed_in_graph"
CONSTANT = "_argand_constant_result"
DYNAMIC = "_argand_dynamic_dims"
STATIC = "_argand_static_dims"


def graph_break() -> None:
    """End the current graph here. Outside compiled code: nothing."""


def is_compiling() -> bool:
    """False; inside code that argand is capturing, True."""
    return False


def _mark(fn: T, name: str) -> T:
    if isinstance(fn, (list, tuple)):
        return type(fn)(_mark(item, name) for item in fn)
    if not callable(fn):
        raise ConfigError(f"expected a callable, not {type(fn).__name__}", remedy="pass a function")
    try:
        setattr(fn, name, True)
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{fn!r} takes no attributes and cannot be marked", remedy="wrap it in a Python function and mark that"
        ) from None
    return fn


def mark_disabled(fn: T) -> T:
    """Capture breaks the graph at a call of `fn`."""
    return _mark(fn, DISABLED)


def allow_in_graph(fn: T) -> T:
    """Put calls of `fn` into the graph as they are, without looking inside. `fn` must be a function of tensors.

    Raises:
        ConfigError: `fn` is not a callable that can be marked.
    """
    return _mark(fn, ALLOWED)


def assume_constant_result(fn: T) -> T:
    """Call `fn` while capturing and treat what it returns as a constant; it is not called again."""
    return _mark(fn, CONSTANT)


def is_disabled(fn: Any) -> bool:
    return getattr(fn, "__dict__", {}).get(DISABLED, False) is True


def is_allowed_in_graph(fn: Any) -> bool:
    return getattr(fn, "__dict__", {}).get(ALLOWED, False) is True


def is_constant_result(fn: Any) -> bool:
    return getattr(fn, "__dict__", {}).get(CONSTANT, False) is True


def _mark_dims(tensor: Any, dims: Any, name: str, value: Any) -> None:
    for dim in dims if isinstance(dims, (list, tuple)) else (dims,):
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise ConfigError(f"dim {dim!r} is not a dimension of a tensor of {tensor.dim()} dimensions")
        marked = tensor.__dict__.setdefault(name, {})
        marked[dim % tensor.dim()] = value


def mark_dynamic(tensor: Any, dim: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Say that the size of `tensor` along `dim` (or dims) will vary. Noted in this version; sizes are specialised."""
    _mark_dims(tensor, dim, DYNAMIC, (min, max))


def mark_static(tensor: Any, dim: Any = None) -> None:
    """Say that the size along `dim` (all by default) never varies."""
    _mark_dims(tensor, list(range(tensor.dim())) if dim is None else dim, STATIC, True)
