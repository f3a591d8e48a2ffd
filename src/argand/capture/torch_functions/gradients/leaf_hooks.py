"""Guards on hooks of leaves that no attribute of the tensor shows."""

from __future__ import annotations

import torch

from argand._core.node_layout import node_layout


def accumulate_quietly(*leaves: torch.Tensor) -> bool:
    """No code of the program runs when gradients are accumulated in these leaves, but for hooks of Python on them."""
    with torch._C.DisableTorchFunction():
        layout = node_layout()
        return layout is None or all(map(layout.accumulates_quietly, leaves))


def are_pythons(*leaves: torch.Tensor) -> bool:
    """All hooks on these tensors are Python's."""
    with torch._C.DisableTorchFunction():
        layout = node_layout()
        return layout is None or not any(map(layout.hooked_natively, leaves))
