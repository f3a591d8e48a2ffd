"""What users tell capture about functions and tensors; read by the interpreter, harmless outside compiled code."""

from __future__ import annotations

import sys
import types
from typing import Any, TypeVar

from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import attributes_of
from argand.errors import ConfigError

T = TypeVar("T")

DISABLED = "_argand_disabled"
ALLOWED = "_argand_allowed_in_graph"
CONSTANT = "_argand_constant_result"
REASON = "_argand_disabled_reason"
DYNAMIC = "_argand_dynamic_dims"
STATIC = "_argand_static_dims"


def graph_break() -> None:
    """End the current graph here. Outside compiled code: nothing."""


def is_compiling() -> bool:
    """False; inside code that argand is capturing, True."""
    return False


def mark_step_begin() -> None:
    """Say that a step (of a training loop, of generating text) begins: results of earlier steps are not used again.

    A hint for `mode="reduce-overhead"`, which a program need not give: argand never overwrites a result that the
    program holds, and results are copied out of the memory that CUDA graphs write to. In this version nothing follows
    from the hint.
    """


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


def mark_disabled(fn: T, reason: str | None = None) -> T:
    """Capture breaks the graph at a call of `fn`, giving the reason."""
    marked = _mark(fn, DISABLED)
    if reason is not None:
        setattr(marked, REASON, reason)
    return marked


def allow_in_graph(fn: T) -> T:
    """Put calls of `fn` into the graph as they are, without looking inside. `fn` must be a function of tensors.

    Raises:
        ConfigError: `fn` is not a callable that can be marked.
    """
    return _mark(fn, ALLOWED)


def assume_constant_result(fn: T) -> T:
    """Call `fn` while capturing and treat what it returns as a constant; it is not called again."""
    return _mark(fn, CONSTANT)


def is_disabled(fn: Function) -> bool:
    return attributes_of(fn).get(DISABLED, False) is True


def wrapped_by_compiler(fn: Function) -> Any:
    """What torch.compile or torch.compiler.disable (or an observer of argand's) wrapped in `fn`; else None.

    functools.wraps copies their marks to functions that do more than the wrapped one: those are not looked through.
    """
    original = attributes_of(fn).get("_torchdynamo_orig_callable")
    while type(fn) is types.MethodType:
        fn = fn.__func__
    name = fn.__globals__.get("__name__") if original is not None and type(fn) is types.FunctionType else None
    return original if type(name) is str and name.startswith(("torch._dynamo.", "argand.")) else None


def is_disabled_by_torch(fn: Function) -> bool:
    """Whether torch.compiler.disable marks `fn`: itself, not a function that it wraps, and not one of torch's own.

    torch marks its own functions for its own compiler, once that was used: steps of LBFGS and SparseAdam, say.
    """
    attributes = attributes_of(fn)
    if attributes.get("_torchdynamo_disable") is not True:
        return False
    original = wrapped_by_compiler(fn)
    return "_torchdynamo_orig_callable" not in attributes or (original is not None and not is_of_torch(original))


def is_of_torch(original: object) -> bool:
    """Whether what was wrapped is torch's: marks on that are for torch's own compiler."""
    return str(getattr(original, "__module__", "")).startswith("torch.")


def is_allowed_in_graph(fn: Function) -> bool:
    if attributes_of(fn).get(ALLOWED, False) is True:
        return True
    rules = sys.modules.get("torch._dynamo.trace_rules")  # where torch.compiler.allow_in_graph notes functions
    return rules is not None and id(fn) in rules._allowed_callable_ids


def is_constant_result(fn: Function) -> bool:
    attributes = attributes_of(fn)
    return attributes.get(CONSTANT, False) is True or attributes.get("_dynamo_marked_constant", False) is True


def _check_tensor(tensor: object) -> None:
    if not hasattr(tensor, "dim"):
        raise ConfigError(
            f"sizes are marked on a tensor, not on a {type(tensor).__name__} ({tensor!r})",
            remedy="pass the tensor that is given to the compiled function, before the first call",
        )


def _mark_dims(tensor: Any, dims: object, name: str, value: object) -> None:
    for dim in dims if isinstance(dims, (list, tuple)) else (dims,):
        _check_tensor(tensor)
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise ConfigError(
                f"dim {dim!r} is not a dimension of a tensor of {tensor.dim()} dimensions",
                remedy=f"pass an int from {-tensor.dim()} to {tensor.dim() - 1}, or a list of them",
            )
        marked = tensor.__dict__.setdefault(name, {})
        marked[dim % tensor.dim()] = value


def mark_dynamic(tensor: object, dim: object, *, min: int | None = None, max: int | None = None) -> None:
    """Say that the size of `tensor` along `dim` (or dims) will vary: the first compile already makes it symbolic.

    Arguments:
        dim: a dim or a list of them; negative ones count from the end.
        min, max: the sizes that the compiled code is for, inclusive; 0 and 1 are never among them.

    Raises:
        ConfigError: there is no such dim.
        ConstraintViolation: (when it is captured) the program needs one size, or the call's is not in the range.
    """
    _mark_dims(tensor, dim, DYNAMIC, (min, max))


def mark_static(tensor: Any, dim: object = None) -> None:
    """Say that the size along `dim` (a dim, a list, or all by default) is to be a constant of the compiled code."""
    _check_tensor(tensor)
    _mark_dims(tensor, list(range(tensor.dim())) if dim is None else dim, STATIC, True)
