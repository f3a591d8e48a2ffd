"""Sizes that must agree where torch's metadata kernels do not look, for calls whose sizes vary.

At the sizes of the call at hand trial_runs.py finds out; at the probes, which are too large to try, these checks do,
so that what must agree becomes a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from argand.capture.facts.handlers import Function
from argand.capture.metadata.rules import RULES, Misfit, Unknown, tensor
from argand.graph.metadata.strides import elements_spanned


def _same(source: torch.Tensor, part: torch.Tensor) -> None:
    if tensor(source).shape != part.shape:
        raise Misfit(f"a source of size {list(source.shape)} for a part of size {list(part.shape)}")


def _slice_scatter(
    x: object, src: object, dim: int = 0, start: object = None, end: object = None, step: int = 1
) -> None:
    part = torch.ops.aten.slice.Tensor(tensor(x), dim, start, end, step)
    _same(src, part)


def _select_scatter(x: object, src: object, dim: int, index: int) -> None:
    _same(src, tensor(x).select(dim, index))


def _diagonal_scatter(x: object, src: object, offset: int = 0, dim1: int = 0, dim2: int = 1) -> None:
    _same(src, torch.diagonal(tensor(x), offset, dim1, dim2))


def _as_strided_scatter(
    x: object, src: torch.Tensor, size: Sequence[int], stride: object, storage_offset: object = None
) -> None:
    if tuple(tensor(src).shape) != tuple(size):
        raise Misfit(f"a source of size {list(src.shape)} for a part of size {list(size)}")
    if tensor(x).requires_grad and not tensor(x).is_contiguous():
        raise Misfit("a tensor that requires grad and is not contiguous")


def _as_strided(x: object, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> None:
    given = tensor(x)
    with torch._C.DisableTorchFunction():
        first = given.storage_offset() if storage_offset is None else storage_offset
        end = first + elements_spanned(size, stride)
        memory = given.untyped_storage().nbytes()
    if 0 not in size and end * given.itemsize > memory:  # of an input, no more is sure than its elements
        raise Misfit(f"elements up to number {end - 1} of {memory // given.itemsize} in memory")


def _class_loss(x: object, target: torch.Tensor, *args: object, **kwargs: object) -> None:
    """Class numbers: one for each element but for the dimension of classes. (Probabilities have the input's size.)"""
    shape, given = tuple(tensor(x).shape), tuple(tensor(target).shape)
    if not target.dtype.is_floating_point and len(shape) > 1 and given != (shape[0], *shape[2:]):
        raise Misfit(f"scores of size {list(shape)} for targets of size {list(given)}")


def _pixel_unshuffle(x: torch.Tensor, downscale_factor: int) -> None:
    if any(size % downscale_factor for size in tensor(x).shape[-2:]):
        raise Misfit(f"a size of {list(x.shape[-2:])} is no multiple of {downscale_factor}")


def _then_torch(check: Callable[..., None]) -> Function:
    def rule(*args: object, **kwargs: object) -> object:
        check(*args, **kwargs)
        raise Unknown  # the tracer is right where the sizes agree

    return rule


for _check, _functions in (
    (_slice_scatter, (torch.slice_scatter, torch.Tensor.slice_scatter)),
    (_select_scatter, (torch.select_scatter, torch.Tensor.select_scatter)),
    (_diagonal_scatter, (torch.diagonal_scatter, torch.Tensor.diagonal_scatter)),
    (_as_strided_scatter, (torch.as_strided_scatter, torch.Tensor.as_strided_scatter)),
    (_as_strided, (torch.as_strided, torch.Tensor.as_strided, torch.as_strided_, torch.Tensor.as_strided_)),
    (_as_strided, (torch.as_strided_copy,)),
    (_class_loss, (F.cross_entropy, F.nll_loss, torch._C._nn.cross_entropy_loss, torch._C._nn.nll_loss_nd)),
    (_pixel_unshuffle, (F.pixel_unshuffle, torch.pixel_unshuffle)),
):
    for _function in _functions:
        RULES[_function] = _then_torch(_check)
