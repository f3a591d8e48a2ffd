"""`flex_attention` in a graph: attention whose scores pass through functions that are graphs of their own.

A captured graph calls `flex_attention(score, mask, *tensors)`, which is spelt out in ordinary operations over the whole
matrix of scores, as eager computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.quick_dataclasses import dataclass

_LN2 = 0.6931471805599453
LOG2E = 1.4426950408889634
Tensors = Sequence[torch.Tensor]
Mod = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class FlexCall:
    """How the tensors of a call belong together.

    Arguments:
        mask_info: the fields of the block mask without its function; a tensor is `At(n)`, the n-th of the node's.
        scale: what products of queries and keys are multiplied with.
        greatest: whether the greatest scores are asked for.
        score, mask: which of the node's tensors the two functions read besides score and positions.
    """

    mask_info: tuple[Any, ...]
    scale: float
    greatest: bool
    score: tuple[int, ...]
    mask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class At:
    """Stands for a tensor of the node."""

    index: int


def flex_attention(score: Any, mask: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What torch's operator gives: (result, log2-sum-exp of each row, greatest score of each row over log(2)).

    Arguments:
        score: a graph module that takes a score, its batch, head, query and key, then what else it reads, and returns
            a tuple of the new score; `meta["call"]` is the `FlexCall`.
        mask: one that takes the four positions and returns a tuple of whether the key is seen.
        tensors: query, key, value, tensors of the block mask, then what the two read.
    """
    call: FlexCall = score.meta["call"]
    read = [tensors[i] for i in call.score], [tensors[i] for i in call.mask]
    query, key, value = tensors[:3]
    kind = "cpu" if query.is_meta else query.device.type  # where stand-ins show what results are like
    with torch.autocast(kind, enabled=False):  # acts on what is given to the operator alone
        return dense(query, key, value, only(score), only(mask), call.scale, *read)


def only(body: Any) -> Mod:
    """A graph that returns a tuple of one, as a function of its value."""

    def call(*args: torch.Tensor) -> torch.Tensor:
        (score,) = body.forward(*args)
        result: torch.Tensor = score
        return result

    return call


def working_dtype(query: torch.Tensor) -> torch.dtype:
    """The type that scores are computed in."""
    return torch.float64 if query.dtype is torch.float64 else torch.float32


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Mod, mask_mod: Mod, scale: float,
    score_reads: Tensors, mask_reads: Tensors,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """`flex_attention` in ordinary operations, all scores at once.

    Raises:
        RuntimeError: the batches of queries and keys do not go together.
    """
    batch = query.shape[0]
    if batch != key.shape[0] and key.shape[0] != 1:
        raise RuntimeError(f"a batch of {batch} queries does not go with one of {key.shape[0]} keys")
    layout = query.stride()
    query, key, value = [_operand(tensor, batch) for tensor in (query, key, value)]
    work = working_dtype(query)
    products = _by_head(query.to(work), key.to(work).transpose(-2, -1))
    positions = [torch.arange(n, device=query.device) for n in products.shape]
    scores = everywhere(score_mod, (products * scale).to(work), positions, score_reads)
    seen = everywhere(mask_mod, None, positions, mask_reads)
    scores = torch.where(seen, scores, torch.full((), -torch.inf, dtype=work, device=query.device))
    blind = (scores == -torch.inf).all(-1)  # rows that see no key
    sums = torch.where(blind, -torch.inf, torch.where(blind.unsqueeze(-1), 0.0, scores).logsumexp(-1))
    weights = torch._safe_softmax(scores, -1)
    out = _by_head(weights.to(query.dtype), value.to(query.dtype))
    return laid_out(out, layout), sums / _LN2, scores.detach().amax(-1) / _LN2


def _operand(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """A tensor for each batch, whose gradient has a layout like its own: for each batch, where all share the tensor."""
    whole = tensor if tensor.shape[0] == batch else tensor.expand(batch, -1, -1, -1)
    made_with_layout: torch.Tensor = GradientLaidOut.apply(whole, tensor.stride())
    return made_with_layout


def _by_head(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, where several heads of `a` share one of `b`."""
    batch, heads, rows, width = a.shape
    if heads == b.shape[1]:
        return a @ b
    product = a.reshape(batch, b.shape[1], -1, width) @ b
    return product.view(batch, heads, rows, b.shape[-1])


def everywhere(mod: Mod, scores: torch.Tensor | None, positions: Tensors, reads: Tensors) -> torch.Tensor:
    """A function of one score, at every position of the matrix.

    Arguments:
        scores: None where the function takes positions alone.
        positions: the batches, heads, queries and keys.
    """
    first: tuple[Any, ...] = () if scores is None else (0,)
    for dim in (3, 2, 1, 0):
        where = tuple([0 if at == dim else None for at in range(4)])
        mod = torch.vmap(mod, in_dims=(*first, *where, *[None] * len(reads)))
    return mod(*(() if scores is None else (scores,)), *positions, *reads)


def strides_like(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The layout of a result, dense in the order of `inwards`."""
    strides, step = [0] * len(size), 1
    for dim in inwards(size, stride):
        strides[dim] = step
        step *= size[dim]
    return tuple(strides)


def inwards(size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Dimensions of a result from the innermost outwards, as in a tensor that has these strides.

    Of equal strides the later dimension is further in. The last one comes first, unless only ones are before it.
    """
    last = len(size) - 1
    order = sorted(range(len(size)), key=lambda dim: (stride[dim], -dim))
    if any(size[dim] != 1 for dim in order[: order.index(last)]):
        order.remove(last)
        order.insert(0, last)
    return order


def laid_out(result: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A result in the layout of `strides_like`."""
    if result.stride() == strides_like(result.shape, stride):
        return result
    order = inwards(result.shape, stride)[::-1]
    back = [order.index(dim) for dim in range(result.dim())]
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


class GradientLaidOut(torch.autograd.Function):
    """A tensor as it is, whose gradient has the layout that a result has beside a tensor of these strides."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
        ctx.stride = tuple(stride)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return laid_out(grads[0], ctx.stride), None
