"""Tracing a program's own operators whose backward cannot be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.operators.custom_backward import casts_inside, custom_backward, custom_call


def stands_for(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of a program's own operator, its backward one operator too; None where it is recorded as it is."""
    call = custom_call(target, args, kwargs)
    if call is None or compat.autocast_active():  # which may cast what the operator is given
        return None
    op, given = call
    if not torch.is_grad_enabled() or not any(arg.requires_grad for arg in given):
        return None
    return _Custom.apply(op, *given)


def refuse_casts(target: Any) -> None:
    """Compiled programs run without autocast, as the casts are in them; those that operators make inside are not."""
    if compat.autocast_active() and casts_inside(target):
        raise AutogradError("autocast is on around an operator that is written in Python, and casts inside")


class _Custom(torch.autograd.Function):
    """The operator and `argand::custom_backward`, for autograd above the tracer."""

    @staticmethod
    def forward(ctx: Any, op: Any, *tensors: torch.Tensor) -> Any:
        ctx.name = op.name() if "." in op.name() else f"{op.name()}.default"
        ctx.save_for_backward(*tensors)
        return op(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        wanted = list(ctx.needs_input_grad[1:])
        gradients = iter(custom_backward().custom_backward(ctx.name, list(ctx.saved_tensors), list(grads), wanted))
        return None, *[next(gradients) if want else None for want in wanted]
