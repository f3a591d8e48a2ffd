"""Tracing torch's recurrent layers without walking their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.autograd.recording.values import TraceTensor
from argand.errors import AutogradError
from argand.graph.operators.recurrent import Recurrence, recurrence, recurrent_ops

UNROLLED = 16
"""So many steps are recorded one by one, where the length does not vary: they fuse with what is around them."""


def stands_for(kind: str, args: Sequence[Any], kwargs: dict[str, Any], many_sizes: bool) -> Any:
    """The results of a recurrent layer as one operator; None where torch's own definition is to be recorded.

    Arguments:
        kind: a value of `graph.operators.recurrent.FUNCTIONS`.
        many_sizes: the trace is one of several at different sizes.

    Raises:
        AutogradError: the layer draws random numbers at each of too many steps.
    """
    call = recurrence(kind, args, kwargs)
    if call is None or call.input.__class__ is not TraceTensor:
        return None
    if call.input.device.type == "cuda":
        return None if call.draws or _wants_more(call) else tuple(recurrent_ops().recurrence(*call.operands()))
    if call.input.device.type != "cpu":
        return None
    if _has_kernel(call) or (call.steps <= UNROLLED and not many_sizes and call.batch_sizes is None):
        return None
    if call.draws:
        raise AutogradError(
            f"{kind} with dropout between its layers runs step by step, {call.steps} steps here",
            remedy="the graph that holds it runs eagerly",
        )
    return tuple(_Recurrence.apply(call, call.input, *call.states, *call.params))


def _wants_more(call: Recurrence) -> bool:
    """Whether a call on a GPU is to do what the operator does not: keep something for gradients, or cast.

    The operator calls what eager calls with the tensors at hand. Only then torch sees that the weights lie in one piece
    of memory, as its kernels take them: in a graph of the steps they would be copied there in each call.
    """
    if torch.is_autocast_enabled("cuda"):
        return True
    tensors = (call.input, *call.states, *call.params)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _has_kernel(call: Recurrence) -> bool:
    """torch has one kernel for all steps of a layer, which its definition calls."""
    if call.kind != "lstm" or call.batch_sizes is not None or call.states[0].shape != call.states[1].shape:
        return False
    return bool(call.input.dtype is torch.float32 and torch._C._get_mkldnn_enabled())


class _Recurrence(torch.autograd.Function):
    """`argand::recurrence` and its backward, for autograd above the tracer."""

    @staticmethod
    def forward(ctx: Any, call: Recurrence, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return tuple(recurrent_ops().recurrence(*call.operands()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        kind, _, batch_sizes, _, _, *plain = ctx.call.operands()
        count = 1 + len(ctx.call.states)
        input, *rest = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[1:])
        given = [grad.contiguous() for grad in grads]
        made = iter(
            recurrent_ops().recurrence_backward(
                given, kind, input, batch_sizes, rest[: count - 1], rest[count - 1 :], *plain, wanted
            )
        )
        return None, *[next(made) if want else None for want in wanted]
