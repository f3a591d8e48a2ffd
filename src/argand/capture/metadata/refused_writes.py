"""Writes that eager's autograd refuses, which no metadata shows: the frame runs eagerly, which says so. And those that
it records in more tensors than the one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata.meta_tensors import needs_grad
from argand.graph.compat import storage_address

_APART = frozenset(("tensor_split", "hsplit", "vsplit", "dsplit"))  # each of their results is a view of its own


def note_views(several: set[int], func: Function, first: torch.Tensor | None, result: object) -> None:
    """A call may have given several views of a tensor at once, or a view of such a one.

    Arguments:
        several: ids of stand-ins of these, filled.
        first: the first tensor that the call was given.
    """
    if first is None or (type(result) not in (tuple, list) and id(first) not in several):
        return
    if torch.is_grad_enabled() and getattr(func, "__name__", "") not in _APART:
        views = result if isinstance(result, tuple | list) else (result,)
        with torch._C.DisableTorchFunction():
            memory = storage_address(first)
            for view in views:
                if isinstance(view, torch.Tensor) and storage_address(view) == memory:
                    several.add(id(view))


def of_inference_mode(tensors: Mapping[int, TensorInfo], tensor: torch.Tensor) -> bool:
    """Whether eager's tensor would be one of inference mode: a view of another tensor is what that is."""
    with torch._C.DisableTorchFunction():
        if not tensor.is_inference():
            return False
        memory = storage_address(tensor)
        for info in tensors.values():  # (stand-ins of inputs are made when these are first used)
            own = info.tensor if info.real is None else info.real
            if not own.is_inference() and storage_address(info.tensor) == memory:
                return False
        return True


def leaves_inference_mode(tensors: Mapping[int, TensorInfo], result: object) -> bool:
    """Whether a result of the graph was made in inference mode, which the program entered itself."""
    info = tensors.get(id(result))
    if info is None or info.source is not None or torch.is_inference_mode_enabled():
        return False
    return of_inference_mode(tensors, info.tensor)


def check(
    tensors: Mapping[int, TensorInfo], several: set[int], func: Function | None, args: Args, written: torch.Tensor
) -> None:
    """A tensor is written to.

    Arguments:
        tensors: all stand-ins; several: as `note_views` fills it.

    Raises:
        GraphBreak: eager refuses that, or may.
    """
    name = getattr(func, "__name__", str(func))
    with torch._C.DisableTorchFunction():
        if not torch.is_inference_mode_enabled() and of_inference_mode(tensors, written):
            raise _refused(name, "a tensor of inference mode, outside of it")
        if not needs_grad(written, *args):
            return
        if id(written) in several:
            raise _refused(name, "one of several views that one call has given")
        info = tensors.get(id(written))
        if info is not None and info.real is not None and not written.requires_grad and _is_shared(tensors, info.real):
            raise errors.graph_break(
                kind="autograd state of an input changed",
                context=name,
                explanation="What is written gives a history to all tensors that share the memory.",
            )


def _is_shared(tensors: Mapping[int, TensorInfo], real: torch.Tensor) -> bool:
    """Whether a tensor from outside is a view, or another one is known to be a view of it."""
    reals = [info.real for info in tensors.values() if info.real is not None]
    return real._is_view() or any(other._is_view() and other._base is real for other in reals)


def _refused(name: str, what: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="torch call raises an exception",
        context=name,
        explanation=f"{name} writes to {what}, which eager refuses.",
        hints=("Write to a copy, or to the tensor that it is a view of.",),
        skip_frame=True,
    )
