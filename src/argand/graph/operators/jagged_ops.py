"""Attention over the pieces of nested tensors: `argand::jagged_attention`, which eager's own kernels compute.

How eager does it depends on the device, and, without kernels for it, on the lengths of the pieces, which no graph
knows. The backward computes the attention once more, with autograd; it cannot be differentiated.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from argand.graph.nested_tensors import nested
from argand.graph.operators.registration import Operators


@functools.cache
def jagged_ops() -> Operators:
    """Defines the ops, once per process."""
    parts = "Tensor query, Tensor key, Tensor value, Tensor offsets, Tensor key_offsets, bool is_causal, float? scale"
    return Operators(
        {
            f"jagged_attention({parts}) -> Tensor": {
                "CPU": _attention, "CUDA": _attention, "Meta": _size, "Autograd": _attention_with_history,
            },
            f"jagged_attention_backward(Tensor grad, {parts}) -> (Tensor, Tensor, Tensor)": {
                "CPU": _backward, "CUDA": _backward, "Meta": _sizes, "Autograd": _backward_with_history,
            },
        }
    )  # fmt: skip


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor at the beginning of its memory: nested tensors of the other layout look for pieces from there on."""
    whole = tensor.is_contiguous() and tensor.storage_offset() == 0
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, offsets: torch.Tensor, key_offsets: torch.Tensor,
    is_causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    from torch.nested._internal.sdpa import jagged_scaled_dot_product_attention as attend  # asked for by class, else

    whole = [
        nested(_packed(values), at, None, None, None, 1).transpose(1, 2)
        for values, at in ((query, offsets), (key, key_offsets), (value, key_offsets))
    ]
    result: Any = attend(*whole, is_causal=is_causal, scale=scale)
    values: torch.Tensor = result.transpose(1, 2).values()
    return values.contiguous()


def _size(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object) -> torch.Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _backward(grad: torch.Tensor, *given: Any) -> tuple[torch.Tensor, ...]:
    with contextlib.ExitStack() as recording:
        recording.enter_context(torch.enable_grad())
        for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"):
            recording.enter_context(torch._C._SetExcludeDispatchKeyGuard(getattr(torch._C.DispatchKey, key), False))
        leaves = [tensor.detach().requires_grad_() for tensor in given[:3]]
        result = _attention(*leaves, *given[3:])
    return tuple([each.contiguous() for each in torch.autograd.grad(result, leaves, _packed(grad))])


def _sizes(grad: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([tensor.new_empty(tensor.shape) for tensor in given[:3]])


def _attention_with_history(*given: Any) -> Any:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given[:3]):
        return _Attention.apply(*given)
    with torch._C._AutoDispatchBelowAutograd():
        return jagged_ops().jagged_attention(*given)


def _backward_with_history(*given: Any) -> Any:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given[:4]):
        return _Backward.apply(*given)
    with torch._C._AutoDispatchBelowAutograd():
        return jagged_ops().jagged_attention_backward(*given)


class _Attention(torch.autograd.Function):
    """Attention on autograd's tape."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        ctx.save_for_backward(*given[:5])
        ctx.options = given[5:]
        with torch._C._AutoDispatchBelowAutograd():
            return jagged_ops().jagged_attention(*given)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradients = jagged_ops().jagged_attention_backward(grads[0], *ctx.saved_tensors, *ctx.options)
        return (*gradients, None, None, None, None)


class _Backward(torch.autograd.Function):
    """Gradients on autograd's tape, where nothing can be differentiated."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return jagged_ops().jagged_attention_backward(*given)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError("the gradient of attention over nested tensors has no derivative")
