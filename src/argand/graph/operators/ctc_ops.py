"""CTC losses where the lengths are tensors: `argand::ctc_losses`, one loss for each sequence, and how each changes with
the logarithms of the probabilities.

ATen's own operation returns a table for its backward whose size follows from the lengths, which no graph knows. The
gradient (`argand::ctc_gradients`) is a factor for each sequence times what is computed with ATen's own kernels right
away. Like ATen's it cannot be differentiated.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from argand.graph.operators.registration import Operators

aten = torch.ops.aten


@functools.cache
def ctc_ops() -> Operators:
    """Defines the ops, once per process."""
    losses = (
        "ctc_losses(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
        "bool zero_infinity, bool slopes) -> (Tensor, Tensor)"
    )
    gradients = "ctc_gradients(Tensor grad, Tensor slopes, Tensor log_probs) -> Tensor"
    return Operators(
        {
            losses: {"CPU": _losses, "Meta": _sizes, "Autograd": _losses_with_history},
            gradients: {"CPU": _gradients, "Meta": _gradients, "Autograd": _gradients_with_history},
        }
    )


def _losses(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int, zero_infinity: bool, slopes: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    about = log_probs, targets, input_lengths, target_lengths
    losses, table = aten._ctc_loss.Tensor(*about, blank, zero_infinity)
    if not slopes:
        return losses, log_probs.new_empty((0, *log_probs.shape[1:]))
    ones = torch.ones_like(losses)
    each = aten._ctc_loss_backward.Tensor(ones, *about, losses, table, blank, zero_infinity)
    return losses, each.contiguous()


def _sizes(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int, zero_infinity: bool, slopes: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    steps, sequences, classes = log_probs.shape
    return log_probs.new_empty((sequences,)), log_probs.new_empty((steps if slopes else 0, sequences, classes))


def _gradients(grad: torch.Tensor, slopes: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    return slopes * grad[None, :, None]


def _losses_with_history(log_probs: torch.Tensor, *rest: Any) -> Any:
    if log_probs.requires_grad and torch.is_grad_enabled():
        return _Losses.apply(log_probs, *rest)
    with torch._C._AutoDispatchBelowAutograd():
        if type(log_probs) is torch.Tensor and log_probs.is_cpu:  # what the dispatcher would call
            return _losses(log_probs, *rest)
        return ctc_ops().ctc_losses(log_probs, *rest)


def _gradients_with_history(grad: torch.Tensor, slopes: torch.Tensor, log_probs: torch.Tensor) -> Any:
    if (grad.requires_grad or log_probs.requires_grad) and torch.is_grad_enabled():
        return _Gradients.apply(grad, slopes, log_probs)
    with torch._C._AutoDispatchBelowAutograd():
        return ctc_ops().ctc_gradients(grad, slopes, log_probs)


class _Losses(torch.autograd.Function):
    """Losses on autograd's tape."""

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, *rest: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            losses, slopes = ctc_ops().ctc_losses(log_probs, *rest)
        ctx.save_for_backward(slopes, log_probs)
        ctx.mark_non_differentiable(slopes)
        return losses, slopes

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctc_ops().ctc_gradients(grads[0], *ctx.saved_tensors), None, None, None, None, None, None


class _Gradients(torch.autograd.Function):
    """Gradients on autograd's tape, where nothing can be differentiated."""

    @staticmethod
    def forward(ctx: Any, *args: torch.Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return ctc_ops().ctc_gradients(*args)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError("the gradient of ctc_loss has no derivative")
