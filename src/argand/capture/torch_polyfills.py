"""Higher-order operators of torch as plain programs over tensors; interpreted in place of the operator."""

from __future__ import annotations

from typing import Any

import torch


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        found = []
        for item in tree:
            found.extend(_leaves(item))
        return found
    if isinstance(tree, dict):
        found = []
        for key in sorted(tree):
            found.extend(_leaves(tree[key]))
        return found
    return [tree]


def _rebuild(tree: Any, leaves: list[Any]) -> Any:
    """`tree` with its leaves taken from the front of `leaves`."""
    if isinstance(tree, list):
        return [_rebuild(item, leaves) for item in tree]
    if isinstance(tree, tuple):
        return tuple([_rebuild(item, leaves) for item in tree])
    if isinstance(tree, dict):
        return {key: _rebuild(tree[key], leaves) for key in sorted(tree)}
    return leaves.pop(0)


def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """Inclusive scan of `combine_fn` over `dim` in log2(length) steps."""
    leaves = _leaves(xs)
    if reverse:
        leaves = [torch.flip(leaf, [dim]) for leaf in leaves]
    length = leaves[0].shape[dim]
    step = 1
    while step < length:
        left = [torch.narrow(leaf, dim, 0, length - step) for leaf in leaves]
        right = [torch.narrow(leaf, dim, step, length - step) for leaf in leaves]
        combined = _leaves(combine_fn(_rebuild(xs, left), _rebuild(xs, right)))
        leaves = [
            torch.cat([torch.narrow(leaf, dim, 0, step), new], dim) for leaf, new in zip(leaves, combined, strict=True)
        ]
        step = step * 2
    if reverse:
        leaves = [torch.flip(leaf, [dim]) for leaf in leaves]
    return _rebuild(xs, leaves)


def cond(pred: bool, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """torch.cond with a condition that is known."""
    return true_fn(*operands) if pred else false_fn(*operands)
