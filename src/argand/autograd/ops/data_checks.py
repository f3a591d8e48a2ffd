"""Checks that torch makes of the data of arguments, but not of stand-ins for tensors: they become part of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> None:
    if num_classes == -1 or classes.device.type != "cpu":
        return
    torch._assert_async((classes >= 0).all(), "Class values must be non-negative.")
    torch._assert_async((classes < num_classes).all(), "Class values must be smaller than num_classes.")


CHECKS: dict[Any, Callable[..., None]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.ops.aten.one_hot: _one_hot,
    torch.ops.aten.one_hot.default: _one_hot,
}
"""Function of torch → what is to be recorded before its call, with its arguments."""

ROW_MAJOR: Final = frozenset(CHECKS)
"""Functions whose results lie row by row, where what torch computes of stand-ins lies as the argument does."""
