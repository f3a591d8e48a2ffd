"""Convolutions and linear layers whose weights oneDNN has laid out before: `argand::pack_...` and `argand::packed_...`.

A packed weight is a tensor that only these operators read. In graphs it has the size of the weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.metadata.strides import suggests_channels_last
from argand.graph.operators.registration import Operators

_WINDOW = "int[] padding, int[] stride, int[] dilation, int groups"
_AFTER = "str unary, Scalar?[] scalars, str? algorithm"


def has_packing() -> bool:
    """Whether this build of torch lays weights out for oneDNN."""
    mkldnn = torch.backends.mkldnn
    names = ("_reorder_convolution_weight", "_reorder_linear_weight", "_convolution_pointwise", "_linear_pointwise")
    return mkldnn.is_available() and mkldnn.enabled and all(hasattr(torch.ops.mkldnn, name) for name in names)


@functools.cache
def packed_ops() -> Operators:
    """Defines the ops, once per process."""
    library = torch.ops.mkldnn
    convolution, added = library._convolution_pointwise.default, library._convolution_pointwise.binary
    linear = library._linear_pointwise.default
    binary = f"str binary, Scalar? alpha, {_AFTER.replace('str unary', 'str? unary')}"
    return Operators(
        {
            f"pack_convolution(Tensor weight, {_WINDOW}, int[] size) -> Tensor": {
                "CPU": library._reorder_convolution_weight.default,
                "Meta": _same_size,
            },
            "pack_linear(Tensor weight, int rows) -> Tensor": {
                "CPU": library._reorder_linear_weight.default,
                "Meta": _same_size,
            },
            f"packed_convolution(Tensor x, Tensor weight, Tensor? bias, {_WINDOW}, {_AFTER}) -> Tensor": {
                "CPU": convolution,
                "MkldnnCPU": convolution,
                "Meta": _convolution_size,
            },
            f"packed_convolution_and(Tensor x, Tensor other, Tensor weight, Tensor? bias, {_WINDOW}, {binary})"
            " -> Tensor": {"CPU": added, "MkldnnCPU": added, "Meta": _added_size},
            f"packed_linear(Tensor x, Tensor weight, Tensor? bias, {_AFTER}) -> Tensor": {
                "CPU": linear,
                "MkldnnCPU": linear,
                "Meta": _linear_size,
            },
        }
    )


def _same_size(weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device="meta")


def _convolution_size(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, padding: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int], groups: int, *rest: Any,
) -> torch.Tensor:  # fmt: skip
    window = zip(x.shape[2:], weight.shape[2:], padding, stride, dilation)
    points = [(n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, pad, step, gap in window]
    innermost = suggests_channels_last(x.shape, x.stride())
    layout = torch.channels_last if innermost else torch.contiguous_format
    size = (x.shape[0], weight.shape[0], *points)
    return torch.empty(size, dtype=x.dtype, device="meta", memory_format=layout)


def _added_size(x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
    return _convolution_size(x, weight, bias, *rest)


def _linear_size(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device="meta")
