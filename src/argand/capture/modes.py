"""torch's state that captured code may change: grad mode, inference mode, autocast, default dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at one moment."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_cache: bool
    nesting: int
    dtype: torch.dtype
    extra: tuple[Any, ...] = field(default=())


def snapshot() -> Snapshot:
    """Read the state now."""
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return Snapshot(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
        torch.is_autocast_cache_enabled(),
        nesting - 1,
        torch.get_default_dtype(),
    )


def difference(before: Snapshot, after: Snapshot) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The calls that turn the state `before` into `after`."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    if before.grad != after.grad:
        calls.append((torch._C._set_grad_enabled, (after.grad,)))
    for (device, was, dtype), (_, now, new_dtype) in zip(before.autocast, after.autocast):
        if was != now:
            calls.append((torch.set_autocast_enabled, (device, now)))
        if dtype is not new_dtype:
            calls.append((torch.set_autocast_dtype, (device, new_dtype)))
    if before.autocast_cache != after.autocast_cache:
        calls.append((torch.set_autocast_cache_enabled, (after.autocast_cache,)))
    for _ in range(after.nesting - before.nesting):
        calls.append((torch.autocast_increment_nesting, ()))
    for _ in range(before.nesting - after.nesting):
        calls.append((torch.autocast_decrement_nesting, ()))
    if before.dtype is not after.dtype:
        calls.append((torch.set_default_dtype, (after.dtype,)))
    return calls


@contextlib.contextmanager
def restored() -> Iterator[Snapshot]:
    """Whatever happens inside, the state is as before afterwards."""
    before = snapshot()
    try:
        yield before
    finally:
        after = snapshot()
        if after != before:
            for function, args in difference(after, before):
                function(*args)


def _functorch_depth() -> int:
    return 0 if torch._C._functorch.peek_interpreter_stack() is None else 1


def guard_functions() -> tuple[tuple[Callable[[], Any], Any], ...]:
    """(function, value now) pairs: compiled code is valid only while these hold."""
    checks: list[Callable[[], Any]] = [
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._is_any_autocast_enabled,
        torch.get_default_dtype,
        torch.are_deterministic_algorithms_enabled,
        torch._C._len_torch_function_stack,
        torch._C._len_torch_dispatch_stack,
    ]
    found: list[tuple[Callable[[], Any], Any]] = [(check, check()) for check in checks]
    if torch._C._is_any_autocast_enabled():
        found.append((autocast_state, autocast_state()))
    return tuple(found)


def autocast_state() -> tuple[Any, ...]:
    """Which devices autocast to which type."""
    return tuple((d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in _DEVICES)


def cannot_capture() -> bool:
    """A mode is active under which torch calls mean something else (user's torch-function or dispatch modes, functorch,
    tracing, subclass contexts): frames run eagerly."""
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch.utils._python_dispatch._get_current_dispatch_mode() is not None
    )
