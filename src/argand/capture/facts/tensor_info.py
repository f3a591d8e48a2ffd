"""`TensorInfo`: what a capture knows of the stand-in of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

if TYPE_CHECKING:
    from argand.capture.facts.sources import Source
    from argand.capture.sizes.symbolic_tensors import Dynamic


@dataclass(slots=True, eq=False)
class TensorInfo:
    """What is known of a stand-in.

    Arguments:
        tensor: the stand-in (kept alive: the table is keyed by its id).
        node: the fx node that computes it.
        device: the logical device.
        source: where it comes from, for a graph input; None for a result.
        real: the real tensor, for a graph input.
        constant: the value, where it is known while capturing (small tensors made from numbers).
        dynamic: sizes that vary from call to call; None where none do.
    """

    tensor: torch.Tensor
    node: fx.Node
    device: torch.device
    source: Source | None = None
    real: torch.Tensor | None = None
    constant: torch.Tensor | None = None
    dynamic: Dynamic | None = None
