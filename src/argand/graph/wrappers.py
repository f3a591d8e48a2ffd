"""Tensors that wrap others: classes with `__torch_dispatch__` that say what they are made of, and are made of it again
(`__tensor_flatten__`, `__tensor_unflatten__`: quantized and scaled weights, pairs of tensors).

A graph takes and gives the parts. In between, operations are called on wrappers that the graph puts together, and
while it is traced the class's `__torch_dispatch__` says what they do with the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from argand.quick_dataclasses import dataclass

KNOWN: set[type] = set()
"""Classes of which a graph was captured: tracing leaves their operations to them."""


def is_wrapper(cls: type) -> bool:
    """Whether tensors of a class can be taken apart, and torch functions of them are decided by dispatch alone."""
    if cls in KNOWN:
        return True
    if cls is torch.Tensor or cls is torch.nn.Parameter or not issubclass(cls, torch.Tensor):
        return False
    own: Any = cls
    return (
        own.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
        and own.__torch_function__ is torch._C._disabled_torch_function_impl
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
        and (not cls.__module__.startswith("torch.") or cls.__module__.startswith("torch.testing."))
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """What a wrapper is besides its parts.

    Arguments:
        cls: its class.
        names: of the attributes that hold the parts.
        context: what `__tensor_flatten__` gives besides these.
        size, stride: of the whole.
    """

    cls: Any
    names: tuple[str, ...]
    context: object
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def whole(self, *parts: torch.Tensor) -> torch.Tensor:
        """The wrapper of these parts."""
        size, stride = torch.Size(self.size), self.stride
        wrapper: torch.Tensor = self.cls.__tensor_unflatten__(dict(zip(self.names, parts)), self.context, size, stride)
        return wrapper


def layout_of(tensor: torch.Tensor) -> Layout:
    """What a wrapper is besides its parts."""
    names, context = tensor.__tensor_flatten__()
    return Layout(type(tensor), tuple(names), context, tuple(tensor.shape), tensor.stride())


def parts_of(tensor: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """The tensors that a wrapper is made of."""
    return [getattr(tensor, name) for name in layout.names]


def part(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The operation of a graph that takes a part of a wrapper."""

    def part_of_wrapper(wrapper: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = getattr(wrapper, name)
        return inner

    return part_of_wrapper


def laid_out(layout: Layout, tensor: torch.Tensor) -> bool:
    """Whether a wrapper of the same class, type and size is like another one; its parts are looked at elsewhere."""
    with torch._C.DisableTorchFunction():
        names, context = tensor.__tensor_flatten__()
        return tuple(names) == layout.names and bool(context == layout.context)
