"""Convolutions by the faster of several ways, as the first ones, timed, say.

Those that ATen computes as products of matrices may be oneDNN's: ATen has a rule of its own for small ones, and for
windows of one point on one thread (`by_products`). Those of signals, and of images that lie channel by channel by
windows of one point, may be argand's own products: oneDNN lays all operands out anew, and the result back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.runtime.kernels import products
from argand.runtime.kernels.timed_choice import Rivals

_FEW = 20480  # elements of one image
_WIDE = 3  # sides of windows up to which few elements are products
_MANY = 16  # images from which ATen takes oneDNN on one thread, too

WINDOWS = Rivals("small convolutions", lambda: False, 0.95)
POINTS = Rivals("convolutions of single points", lambda: False, 0.95)
VOLUMES = Rivals("convolutions of volumes", lambda: False, 0.95)
OWN = Rivals("convolutions as products", products.is_amd, 0.95, "products")


def by_products(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether ATen computes a float32 convolution of two or three dimensions by a product of matrices.

    Of volumes its rule counts all but the last dimension, and compares the last two sides of the window.
    """
    if groups == 1 and x[0] == 1 and math.prod(x[:4]) <= _FEW and min(weight[-2:]) <= _WIDE:
        return True
    single = set(weight[2:]) == set(stride) == set(dilation) == {1}
    return single and x[0] < _MANY and torch.get_num_threads() == 1


def rivals(weight: Sequence[int]) -> Rivals:
    """Who has timed convolutions with such a weight."""
    if len(weight) == 5:
        return VOLUMES
    return POINTS if set(weight[2:]) == {1} else WINDOWS


def wanted(of: Rivals) -> bool:
    """Whether oneDNN may compute such convolutions: it is faster, or nobody knows yet."""
    mkldnn = torch.backends.mkldnn
    return mkldnn.is_available() and mkldnn.enabled and of.known() is not False


def key() -> str:
    """What programs with convolutions depend on."""
    return f"convolutions {wanted(WINDOWS)} {wanted(POINTS)} {wanted(VOLUMES)} {products.own_wanted(OWN)}"


def is_product(x: Sequence[int], weight: Sequence[int], rest: Sequence[Any]) -> bool:
    """Whether argand's own kernel computes a convolution of such sizes.

    Arguments:
        rest: of `aten.convolution`, after the bias.
    """
    stride, padding, _, transposed, _, groups = rest
    if transposed or groups != 1 or len(x) < 3 or len(x) != len(weight) or 0 in (*x, *weight):
        return False
    return len(x) == 3 or (set(weight[2:]) == set(stride) == {1} and set(padding) == {0})


def product_convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> torch.Tensor:
    """`aten.convolution(x, weight, bias, *rest)`, one that `is_product`, by argand's own kernel."""
    stride, padding, dilation, *_ = rest
    result = products.convolution(x, weight, bias, stride[0], padding[0], dilation[0])
    return torch.convolution(x, weight, bias, *rest) if result is None else result


class MeasuredConvolution:
    """A place in a program that computes convolutions that are products, of one kind: who is faster is asked once."""

    __slots__ = ("_threads", "_way")

    def __init__(self) -> None:
        self._way: Callable[..., torch.Tensor] = torch.convolution
        self._threads = 0  # for which that is the faster way; none yet

    def __call__(self, *args: Any) -> torch.Tensor:
        """`aten.convolution(*args)`."""
        threads = torch.get_num_threads()
        if threads == self._threads and not torch.are_deterministic_algorithms_enabled():
            return self._way(*args)
        x, weight, bias, *window = args
        kind = (x.shape, x.stride(), weight.shape, bias is None, *map(tuple, window[:3]))
        results: list[torch.Tensor] = []

        def by(way: Callable[..., torch.Tensor]) -> None:
            results[:] = [way(*args)]

        if OWN.taken(kind) is None and not products.ready():
            return torch.convolution(*args)
        OWN.run(lambda: by(product_convolution), lambda: by(torch.convolution), kind)
        own = OWN.taken(kind)
        if own is not None:
            self._way, self._threads = product_convolution if own else torch.convolution, threads
        return results[0]


def measured_convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> torch.Tensor:
    """`aten.convolution(x, weight, bias, *rest)`, not transposed."""
    stride, padding, dilation, _, _, groups = rest
    results: list[torch.Tensor] = [x]

    def own() -> None:
        window = (padding, stride, dilation, groups)
        results[0] = torch.ops.mkldnn._convolution_pointwise.default(x, weight, bias, *window, "none", [], "")

    def library() -> None:
        results[0] = torch.convolution(x, weight, bias, *rest)

    rivals(weight.shape).run(own, library, (x.shape, weight.shape, *map(tuple, (stride, padding, dilation))))
    return results[0]


def measured_volume_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: torch.Tensor
) -> None:
    """`aten.convolution_backward(grad, x, weight, *rest)` of one volume: the gradient that is asked for."""
    _, stride, padding, dilation, *_, mask = rest
    of_input = bool(mask[0])
    gradient: Callable[..., torch.Tensor] = _input_gradient if of_input else _weight_gradient

    def own() -> None:
        out.copy_(gradient(grad, x, weight, stride, padding, dilation))

    def library() -> None:
        gradients = torch.ops.aten.convolution_backward.default(grad, x, weight, *rest)
        out.copy_(gradients[0 if of_input else 1])

    kind = (of_input, x.shape, weight.shape, *map(tuple, (stride, padding, dilation)))
    VOLUMES.run(own, library, kind)


def can_halve(points: Sequence[int]) -> bool:
    """Whether the results of a convolution can be parted in two alike halves."""
    return any(size % 2 == 0 for size in points)


def _input_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    windows = zip(x.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    beyond = [n - ((points - 1) * step - 2 * pad + d * (side - 1) + 1) for n, points, side, step, pad, d in windows]
    transposed = torch.ops.mkldnn._convolution_transpose_pointwise.default
    result: torch.Tensor = transposed(grad, weight, None, padding, beyond, stride, dilation, 1, "none", [], "")
    return result


def _weight_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """Of a volume cut in two along a side, with what windows reach beyond the cut: ATen sends two images to oneDNN."""
    side = next(side for side, size in enumerate(grad.shape[2:]) if size % 2 == 0)
    dim, half = side + 2, grad.shape[side + 2] // 2
    whole = torch.nn.functional.pad(x, [0, 0] * (2 - side) + [padding[side]] * 2) if padding[side] else x
    length = (half - 1) * stride[side] + dilation[side] * (weight.shape[dim] - 1) + 1
    images = torch.cat([whole.narrow(dim, 0, length), whole.narrow(dim, half * stride[side], length)])
    around = [0 if number == side else pad for number, pad in enumerate(padding)]
    window = (None, stride, around, dilation, False, [0, 0, 0], 1, [False, True, False])
    halves = torch.cat([grad.narrow(dim, 0, half), grad.narrow(dim, half, half)])
    result: torch.Tensor = torch.ops.aten.convolution_backward.default(halves, images, weight, *window)[1]
    return result
