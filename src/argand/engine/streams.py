"""On a GPU: a graph runs on the caller's stream, and reads what the forward left on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge


def wait_for_forward(roots: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], to: Callable[..., Any]) -> None:
    """Make the caller's stream wait until what is differentiated has been computed, with all that this depends on, and
    keep the memory of saved tensors until what the caller's stream does with them is done.

    Arguments:
        roots: what is differentiated.
        to: lets the engine go to some edges, and no further, with no gradient.
    """
    device = roots[0].device
    streams: set[Any] = set()
    handles = [root.register_hook(lambda grad: streams.add(torch.cuda.current_stream(device))) for root in roots]
    try:
        to(tuple([get_gradient_edge(root) for root in roots]))
    finally:
        for handle in handles:
            handle.remove()
    here = torch.cuda.current_stream(device)
    if streams - {here}:
        for tensor in saved:
            if tensor.is_cuda:
                tensor.record_stream(here)
