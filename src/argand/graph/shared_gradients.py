"""Gradients that are handed on inside of a new wrapper, and that somebody else holds too.

Autograd makes a gradient that arrives at a leaf the leaf's own, and adds to it later, if nobody else holds it. Of a
wrapper that is made on the way nobody does; of what it wraps somebody may: the caller of `backward`, or another leaf.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch


def own(grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """What a node's `backward(ctx, *grads)` was given, with copies of what others hold; called there, before anything
    else has `grads`."""
    counts = _holders(grads)
    return [
        grad if grad is None or count <= _alone(grad._is_view()) else grad.clone() for grad, count in zip(grads, counts)
    ]


def _holders(grads: Sequence[Any]) -> list[int]:
    """How often each is held, together with what it is a view of."""
    counts = []
    for grad in grads:
        count = 0 if grad is None else sys.getrefcount(grad) + grad._use_count()
        if grad is not None and grad._is_view():
            base = grad._base
            count += sys.getrefcount(base) + base._use_count()
        counts.append(count)
    return counts


@functools.cache
def _alone(view: bool) -> int:
    """How many are counted for a gradient that only the engine holds."""
    counts: list[int] = []
    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        result = _Sample.apply(_Sample.apply(leaf, counts.extend, False), None, view)
        result.backward(torch.ones(1))
    return counts[0]


class _Sample(torch.autograd.Function):
    """A node that tells how often what it is given is held, and gives a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, tell: Callable[[list[int]], None] | None, view: bool) -> torch.Tensor:
        ctx.tell, ctx.view = tell, view
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if ctx.tell is not None:
            ctx.tell(_holders(grads))
        gradient = grads[0] * 2
        return gradient.view_as(gradient) if ctx.view else gradient, None, None
