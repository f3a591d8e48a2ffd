"""Hooks of leaves: those that the program sees, and guards on those that no attribute of the tensor shows."""

from __future__ import annotations

import torch

from argand._core.node_layout import node_layout
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import AttrSource


def seen_by_program(state: CaptureState, leaf: torch.Tensor, name: str) -> object:
    """The dict of a leaf's hooks, as the program sees it; None where it has none.

    Arguments:
        name: `_backward_hooks` or `_post_accumulate_grad_hooks`.
    """
    info = state.tensor_info(leaf)
    if info.real is None or info.source is None:
        return None
    with torch._C.DisableTorchFunction():
        hooks = getattr(info.real, name)
    if hooks is None:
        state.guard(AttrSource(info.source, name), "is_none")
        return None
    return state.load_source(AttrSource(info.source, name), hooks)


def accumulate_quietly(*leaves: torch.Tensor) -> bool:
    """No code of the program runs when gradients are accumulated in these leaves, but for hooks of Python on them; they
    are of the leaves' dtypes."""
    with torch._C.DisableTorchFunction():
        if any(getattr(leaf, "grad_dtype", leaf.dtype) is not leaf.dtype for leaf in leaves):
            return False
        layout = node_layout()
        return layout is None or all(map(layout.accumulates_quietly, leaves))


def are_pythons(*leaves: torch.Tensor) -> bool:
    """All hooks on these tensors are Python's."""
    with torch._C.DisableTorchFunction():
        layout = node_layout()
        return layout is None or not any(map(layout.hooked_natively, leaves))
