"""Tensors that wrap others, and what they wrap: a write to the one is noticed where autograd saved the other.

Autograd counts the writes to a tensor, and refuses to compute a gradient from one that was written to since it was
saved. Below a class's `__torch_dispatch__` nothing is counted: a write to a wrapper raises the wrapper's version, not
those of its parts. A graph that is given the parts saves these. So at each edge where a wrapper is taken apart, or put
together, both sides get one counter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from argand.graph.compat import DispatchMode, written_in_place


class _Answered(DispatchMode):
    """Gives `answer` for whatever operation is called."""

    answer: torch.Tensor

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> torch.Tensor:
        return self.answer


def share_counters(tensors: Iterable[Any], others: Iterable[Any]) -> None:
    """Give each of `others`, of which nobody knows yet, the version counter of its tensor.

    What `detach` gives has the counter of what it is called on, whatever that is.
    """
    mode = _Answered()
    torch._C._push_on_torch_dispatch_stack(mode)
    try:
        with torch._C.DisableTorchFunction():
            for tensor, other in zip(tensors, others):
                if not (tensor.is_inference() or other.is_inference()):  # which have none
                    mode.answer = other
                    torch.Tensor.detach(tensor)
    finally:
        torch._C._pop_torch_dispatch_stack(None)


def counted_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`other`, with the version counter of `tensor`."""
    share_counters((tensor,), (other,))
    return other


def set_versions(tensors: tuple[torch.Tensor, ...], versions: tuple[int, ...]) -> None:
    """Give tensors these versions."""
    torch._C._autograd._unsafe_set_version_counter(tensors, versions)


def record_write(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Have autograd record that a tensor was given new values, which it holds already, and is counted as written to."""
    version: int = tensor._version
    tensor.copy_(new)
    set_versions((tensor,), (version,))


def refuses_writes(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of a kind that autograd records no writes to."""
    autograd: Any = torch._C._autograd
    return tensor._is_view() and autograd._get_creation_meta(tensor) != autograd.CreationMeta.DEFAULT


def refuses_recorded_writes(tensor: torch.Tensor) -> bool:
    """As `refuses_writes`, or a leaf that requires grad, or a view of one."""
    base = tensor._base
    leaf = tensor if base is None else base
    return (leaf.requires_grad and leaf.is_leaf) or refuses_writes(tensor)


def share_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to one tensor raises the version of the other."""
    before = one._version, other._version
    written_in_place([one])
    shared = int(other._version) != before[1]
    set_versions((one,), (before[0],))
    return shared
