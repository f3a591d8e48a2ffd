"""Tracing torch's recurrent layers without walking their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.autograd.recording.values import TraceTensor
from argand.errors import AutogradError
from argand.runtime.kernels import gru
from argand.runtime.kernels.recurrent import Recurrence, recurrence, recurrent_ops

UNROLLED = 16
"""So many steps are recorded one by one, where the length does not vary: they fuse with what is around them."""


def stands_for(kind: str, args: Sequence[Any], kwargs: dict[str, Any], many_sizes: bool) -> Any:
    """The results of a recurrent layer as one operator; None where torch's own definition is to be recorded.

    Arguments:
        kind: a value of `runtime.kernels.recurrent.FUNCTIONS`.
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
    if call.keeps:
        gru.prepare()
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
    """`argand::recurrence` and its backward, for autograd above the tracer; by argand's own kernel, what that kept."""

    @staticmethod
    def forward(ctx: Any, call: Recurrence, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        if not call.keeps or not any(ctx.needs_input_grad):
            ctx.save_for_backward(*tensors)
            return tuple(recurrent_ops().recurrence(*call.operands()))
        count = len(call.states) + 1
        results = recurrent_ops().recurrence_keeping(*call.operands())
        ctx.save_for_backward(*tensors, results[0], *results[count:])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        kind, _, batch_sizes, _, _, *plain = ctx.call.operands()
        states, inputs = len(ctx.call.states), 1 + len(ctx.call.states) + len(ctx.call.params)
        input, *rest = ctx.saved_tensors[:inputs]
        kept = list(ctx.saved_tensors[inputs:])
        wanted = list(ctx.needs_input_grad[1:])
        operands = (kind, input, batch_sizes, rest[:states], rest[states:], *plain, wanted)
        given = [grad.contiguous() for grad in grads]
        ops = recurrent_ops()
        if kept:
            gradients = iter(ops.recurrence_backward_from(given, kept, *operands))
        else:
            gradients = iter(ops.recurrence_backward(given, *operands))
        return None, *[next(gradients) if want else None for want in wanted]
