"""Convolutions that ATen computes as products of matrices, by oneDNN where the first ones, timed, are faster so.

ATen has a rule of its own for small ones, and for windows of one point on one thread (`by_products`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from argand.runtime.kernels.timed_choice import Rivals

_FEW = 20480  # elements of one image
_WIDE = 3  # sides of windows up to which few elements are products
_MANY = 16  # images from which ATen takes oneDNN on one thread, too

WINDOWS = Rivals("small convolutions", lambda: False, 0.95)
POINTS = Rivals("convolutions of single points", lambda: False, 0.95)


def by_products(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether ATen computes a float32 convolution of two dimensions by a product of matrices."""
    if groups == 1 and x[0] == 1 and math.prod(x) <= _FEW and min(weight[2:]) <= _WIDE:
        return True
    single = tuple(weight[2:]) == (1, 1) and set(stride) == set(dilation) == {1}
    return single and x[0] < _MANY and torch.get_num_threads() == 1


def rivals(weight: Sequence[int]) -> Rivals:
    """Who has timed convolutions with such a weight."""
    return POINTS if tuple(weight[2:]) == (1, 1) else WINDOWS


def wanted(of: Rivals) -> bool:
    """Whether oneDNN may compute such convolutions: it is faster, or nobody knows yet."""
    mkldnn = torch.backends.mkldnn
    return mkldnn.is_available() and mkldnn.enabled and of.known() is not False


def key() -> str:
    """What programs with convolutions depend on."""
    return f"convolutions {wanted(WINDOWS)} {wanted(POINTS)}"


def measured_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, out: torch.Tensor
) -> None:
    """`aten.convolution(x, weight, bias, *rest)`, not transposed, in `out`."""
    stride, padding, dilation, _, _, groups = rest

    def own() -> None:
        window = (padding, stride, dilation, groups)
        out.copy_(torch.ops.mkldnn._convolution_pointwise.default(x, weight, bias, *window, "none", [], ""))

    def library() -> None:
        out.copy_(torch.ops.aten.convolution.default(x, weight, bias, *rest))

    rivals(weight.shape).run(own, library, (x.shape, weight.shape, *map(tuple, (stride, padding, dilation))))
