"""Metadata rules for matrix products and convolutions (see shapes)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from argand.capture.metadata import layouts
from argand.capture.metadata.layouts import Unknown, contiguous, needs_grad, new
from argand.capture.metadata.shapes import RULES, rule
from argand.graph.metadata.strides import channels_last_strides

_Tensor = torch.Tensor


def _same_dtype(*operands: Any) -> torch.dtype:
    first: torch.dtype = operands[0].dtype
    for operand in operands:
        if operand is not None and (not isinstance(operand, _Tensor) or operand.dtype is not first):
            raise Unknown
    return first


def _linear(x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    dtype = _same_dtype(x, weight, bias)
    shape, wide = tuple(x.shape), tuple(weight.shape)
    if len(wide) != 2 or not shape or shape[-1] != wide[1] or 0 in shape or 0 in wide or len(shape) < 2:
        raise Unknown
    if bias is not None and tuple(bias.shape) != wide[:1]:
        raise Unknown
    return new((*shape[:-1], wide[0]), None, dtype, needs_grad(x, weight, bias))


RULES[F.linear] = _linear


@rule("matmul", methods=("matmul", "__matmul__"))
def _matmul(a: Any, b: Any) -> torch.Tensor:
    dtype = _same_dtype(a, b)
    left, right = tuple(a.shape), tuple(b.shape)
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2] or 0 in left or 0 in right:
        raise Unknown
    batch = left[:-2] if left[:-2] == right[:-2] else layouts.broadcast((left[:-2], right[:-2]))
    return new((*batch, left[-2], right[-1]), None, dtype, needs_grad(a, b))


@rule("mm")
def _mm(a: Any, b: Any) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2:
        raise Unknown
    return _matmul(a, b)


@rule("bmm")
def _bmm(a: Any, b: Any) -> torch.Tensor:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        raise Unknown
    return _matmul(a, b)


@rule("baddbmm")
def _baddbmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    made = _bmm(a, b)
    shape = tuple(made.shape)
    if layouts.broadcast((tuple(c.shape), shape)) != shape or c.dtype is not made.dtype:
        raise Unknown
    return new(shape, None, made.dtype, needs_grad(c, a, b))


@rule("addmm")
def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    made = _mm(a, b)
    shape = tuple(made.shape)
    if layouts.broadcast((tuple(c.shape), shape)) != shape or c.dtype is not made.dtype:
        raise Unknown
    return new(shape, None, made.dtype, needs_grad(c, a, b))


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    if type(value) is int:
        return (value,) * count
    if not isinstance(value, tuple | list) or any(type(v) is not int for v in value):
        raise Unknown
    return tuple(value) if len(value) == count else tuple(value) * count if len(value) == 1 else _wrong()


def _wrong() -> tuple[int, ...]:
    raise Unknown


def _channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a convolution takes this as NHWC rather than as NCHW (sizes of 1 can look like both)."""
    return strides == channels_last_strides(shape) and strides != contiguous(shape)


def _conv(dims: int) -> Any:
    def conv(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
    ) -> torch.Tensor:
        dtype = _same_dtype(x, weight, bias)
        shape, kernel = tuple(x.shape), tuple(weight.shape)
        if (
            len(shape) != dims + 2
            or len(kernel) != dims + 2
            or 0 in shape
            or 0 in kernel
            or not dtype.is_floating_point
        ):
            raise Unknown
        last = dims == 2 and (_channels_last(shape, x.stride()) or _channels_last(kernel, weight.stride()))
        if not last and (x.stride() != contiguous(shape) or weight.stride() != contiguous(kernel)):
            raise Unknown
        if type(groups) is not int or groups <= 0 or shape[1] != kernel[1] * groups or kernel[0] % groups:
            raise Unknown
        if bias is not None and tuple(bias.shape) != kernel[:1]:
            raise Unknown
        steps, pads, spread = _numbers(stride, dims), _numbers(padding, dims), _numbers(dilation, dims)
        out = []
        for size, k, step, pad, wide in zip(shape[2:], kernel[2:], steps, pads, spread):
            if step <= 0 or wide <= 0 or pad < 0:
                raise Unknown
            length = (size + 2 * pad - wide * (k - 1) - 1) // step + 1
            if length <= 0:
                raise Unknown
            out.append(length)
        made = (shape[0], kernel[0], *out)
        strides = channels_last_strides(made) if last else None
        return new(made, strides, dtype, needs_grad(x, weight, bias))

    return conv


RULES[torch.conv1d] = RULES[F.conv1d] = _conv(1)
RULES[torch.conv2d] = RULES[F.conv2d] = _conv(2)
