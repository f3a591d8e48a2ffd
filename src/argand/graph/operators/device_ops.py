"""`argand::to_device`: a small tensor on a GPU, which kernels read where eager's take a number with the launch."""

from __future__ import annotations

import functools

import torch

from argand.graph.operators.registration import Operators


@functools.cache
def device_ops() -> Operators:
    """Defines the op, once per process."""
    return Operators({"to_device(Tensor x, *, Device device) -> Tensor": {"CompositeExplicitAutograd": _to_device}})


def _to_device(x: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        # A recorded copy would read this memory again in each replay: the numbers themselves are recorded, as eager's.
        numbers = [torch.full((), value, dtype=x.dtype, device=device) for value in x.reshape(-1).tolist()]
        return torch.stack(numbers).reshape(x.shape) if numbers else x.to(device)
    # Memory that is not pinned is read before the call returns, whether or not it waits for the copy.
    return torch.empty_like(x, device=device).copy_(x, non_blocking=not x.is_pinned())
