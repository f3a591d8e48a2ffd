"""Attention on GPUs: masks that say nothing are dropped, others laid out so that the fused kernels take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.autograd.recording.values import TraceTensor
from argand.graph import compat

ATTENTION = torch.nn.functional.scaled_dot_product_attention
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MASK, _CAUSAL = _NAMES.index("attn_mask"), _NAMES.index("is_causal")
_STEPS = 200  # operations that may lead to a mask that is computed while tracing
_ELEMENTS = 1 << 22  # of each of their results


def with_cheap_mask(
    args: tuple[Any, ...], kwargs: dict[str, Any], many_sizes: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `scaled_dot_product_attention`, for tensors on a GPU with a mask that costs less.

    A mask that depends on no input and masks nothing is None; one that hides all later keys is `is_causal`. Programs
    that skip these by themselves see that they are traced, and do not.

    Arguments:
        many_sizes: the trace is one of several at different sizes: what a mask is at one of them proves nothing.
    """
    mask = kwargs.get("attn_mask", args[_MASK] if len(args) > _MASK else None)
    if mask.__class__ is not TraceTensor or mask.device.type == "cpu" or mask.dim() < 2:
        return args, kwargs
    causal = kwargs.get("is_causal", args[_CAUSAL] if len(args) > _CAUSAL else False)
    if not (many_sizes or causal or mask.requires_grad):
        with compat.outside_of_modes(), torch.no_grad():  # the trace is under way: none of this belongs to it
            known = _computed(mask.value.node)
            hides = "" if known is None else _hidden_by(known)
        if hides:
            return _given(args, kwargs, attn_mask=None, is_causal=hides == "later keys")
    return _given(args, kwargs, attn_mask=_dense(mask))


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], **values: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `scaled_dot_product_attention` with other values by name."""
    named = {**dict(zip(_NAMES, args)), **kwargs, **values}
    return tuple(named.pop(name) for name in _NAMES[:_MASK]), named


def _hidden_by(mask: torch.Tensor) -> str:
    """What a mask hides: "nothing", "later keys", or "" for anything else."""
    hidden = ~mask if mask.dtype is torch.bool else mask != 0
    if not bool(hidden.any()):
        return "nothing"
    later = torch.ones(mask.shape[-2:], dtype=torch.bool).triu(1)
    whole = mask.dtype is torch.bool or bool((mask[hidden] == float("-inf")).all())
    square = mask.shape[-2] == mask.shape[-1]
    return "later keys" if square and whole and bool((hidden == later).all()) else ""


def _computed(node: fx.Node | None) -> torch.Tensor | None:
    """What a node of the trace is, computed on the CPU; None where it depends on inputs, or would take long."""
    order: dict[fx.Node, None] = {}
    stack = [node]
    while stack:
        one = stack.pop()
        if one is None or len(order) > _STEPS or not _is_constant(one):
            return None
        if one not in order:
            order[one] = None
            stack.extend(one.all_input_nodes)
    values: dict[fx.Node, Any] = {}
    first: Any = node
    for one in (other for other in first.graph.nodes if other in order):
        args, kwargs = fx.map_arg((one.args, one.kwargs), values.__getitem__)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        value = one.target(*args, **kwargs)
        if isinstance(value, torch.Tensor) and value.numel() > _ELEMENTS:
            return None
        values[one] = value
    result = values[first]
    return result if isinstance(result, torch.Tensor) else None


def _is_constant(node: fx.Node) -> bool:
    """Whether a node always computes the same from what it is given, and is cheap to know."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.numel() > _ELEMENTS:
        return False
    schema = target._schema
    return not compat.is_random(target) and not schema.is_mutable and "empty" not in schema.name


def _dense(mask: Any) -> Any:
    """A mask whose last dimension is contiguous in memory.

    torch refuses its fused kernels for a mask that is spread along the keys (one that masks nothing, say) and computes
    in several steps then, products in float32 among them.
    """
    if mask.shape[-1] == 1 or mask.stride(-1) == 1:
        return mask
    one_row = mask
    for dim in range(mask.dim() - 1):
        if mask.stride(dim) == 0:
            one_row = one_row.narrow(dim, 0, 1)
    return one_row.contiguous().expand(mask.shape)
