"""The gradient of values written where a mask is true: as large as the values, which are as many as true places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.autograd.recording.recorder import Handler, Recorder
from argand.graph import compat

aten = torch.ops.aten

_WRITES = ("IndexPutBackward", "CopySlices")


def trace_index(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """index: where autograd reads at a mask what came back for values written there, it needs no count of the mask."""
    masks = [(dim, each) for dim, each in enumerate(args[1]) if each is not None]
    if len(masks) != 1 or masks[0][1].dtype is not torch.bool:
        return tracer.record(func, args, kwargs)
    size = _size_of_values()
    if size is None:
        return tracer.record(func, args, kwargs)
    with tracer:
        return _read_at_mask(args[0], *masks[0], size)


def _size_of_values() -> Sequence[int] | None:
    """Of the values that were written, where the engine evaluates the backward of a write at positions."""
    running = compat.current_autograd_node()
    if running is None or not running.name().removeprefix("torch::autograd::").startswith(_WRITES):
        return None
    node, place = running.next_functions[1]
    return None if node is None else node._input_metadata[place].shape


def _read_at_mask(grad: torch.Tensor, front: int, mask: torch.Tensor, size: Sequence[int]) -> Any:
    """`grad` at the true places of a mask of its dimensions from `front` on; of one value for several places, zeros at
    the others as well, which autograd adds up with them."""
    behind = grad.dim() - front - mask.dim()
    lead, rest = grad.shape[:front], grad.shape[grad.dim() - behind :]
    shown = mask.reshape([*mask.shape, *[1] * behind])
    at = len(size) - behind - 1  # the dimension of the values that has one for each place
    if at >= 0 and size[at] != 1:
        return aten.masked_scatter_backward.default(grad, shown.expand_as(grad), [*lead, size[at], *rest])
    return grad.masked_fill(shown.logical_not(), 0).reshape([*lead, mask.numel(), *rest])


HANDLERS: dict[Any, Handler] = {aten.index.Tensor: trace_index}
