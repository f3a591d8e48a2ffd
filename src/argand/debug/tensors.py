"""Tensors of trials: what a value holds, copies that a run may write to, and runs that begin from the same state."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from argand.debug import gpus
from argand.graph.metadata.strides import elements_spanned

_FRESH = 0xBE  # what is read without having been written is then 12.08, not by chance what is expected
_M_PERTURB = -6


def parts_of(value: Any) -> dict[str, Any] | None:
    """What a container holds, by how one would write it; None for what is none."""
    if isinstance(value, (list, tuple)):
        names: Sequence[str] = getattr(value, "_fields", ())
        return {f".{names[i]}" if names else f"[{i}]": item for i, item in enumerate(value)}
    if isinstance(value, Mapping):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, torch.nn.Module):
        return {f".{name}": item for name, item in (*value.named_parameters(), *value.named_buffers())}
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {f".{name}": getattr(value, name, None) for name in fields}
    return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in lists, tuples, sets, dicts and objects with fields (dataclasses, model outputs); not in modules."""
    if isinstance(value, torch.Tensor):
        yield value
    elif not isinstance(value, torch.nn.Module):
        for part in value if isinstance(value, set) else (parts_of(value) or {}).values():
            yield from tensors_in(part)


def named_leaves(value: Any, where: str, depth: int) -> Iterator[tuple[str, Any]]:
    """What a value holds that is no container, or that lies deeper, by how one would write it."""
    parts = parts_of(value) if depth and not isinstance(value, (torch.Tensor, torch.nn.Module)) else None
    if not parts:
        yield where, value
    else:
        for name, part in parts.items():
            yield from named_leaves(part, where + name, depth - 1)


def clone_strided(value: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A leaf with memory of its own (on another device, if one is named), the same values and the same strides."""
    plain = value.detach()
    if plain.layout is not torch.strided or plain.device.type == "meta" or not plain.numel():
        copied = plain.clone() if device is None else plain.clone().to(device)
    else:
        extent = elements_spanned(plain.shape, plain.stride())
        copied = plain.new_empty(extent, device=device).as_strided(plain.shape, plain.stride())
        fill(copied, plain)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(copied, requires_grad=value.requires_grad)
    return copied.requires_grad_(value.requires_grad)


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values; elements of the target that share memory are written through one of them."""
    index = tuple(slice(0, 1) if step == 0 else slice(None) for step in target.stride())
    target[index].copy_(source[index])


def clone(value: Any) -> Any:
    """A tensor as `clone_strided` copies it; other things as they are."""
    return clone_strided(value) if isinstance(value, torch.Tensor) else value


def clone_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Inputs that a run may write to."""
    return list(map(clone, inputs))


def detached(value: Any) -> Any:
    """A tensor without its history; other things as they are."""
    return value.detach() if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """The same random numbers, and the same in fresh memory, in every run; the state outside is left as it was."""
    with gpus.kept_generators():
        torch.manual_seed(0)
        _fill_fresh_memory(_FRESH)
        try:
            yield
        finally:
            _fill_fresh_memory(0)


def _fill_fresh_memory(byte: int) -> None:
    """Let glibc fill memory that it hands out with the complement of a byte; 0 leaves it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)
