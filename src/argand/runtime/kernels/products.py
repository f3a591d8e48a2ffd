"""Products of float32 matrices on processors with AVX-512: argand's own kernel.

MKL, which ATen calls, runs code for 256-bit vectors on AMD's. Whether the kernel is faster is found by timing the
first products of each kind (`measured_product`), unless a setting says which is to be taken. Where installing argand
did not compile `products.h`, that is done while the first graph with such a product is compiled; where products are to
be timed, nobody waits for it: meanwhile the library computes. A weight gradient of a convolution is the product of the
result's gradient and a matrix of what each window holds, which is never made: the kernel collects the panels that it
reads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from argand.config import config
from argand.runtime import processor
from argand.runtime.kernels import background_kernels
from argand.runtime.kernels.timed_choice import Rivals
from argand.runtime.profile import Kernel

LEAST_TERMS = 1 << 18  # of a product, below which the call is what takes the time
_WORTH_TIMING = 1 << 22  # of one of which no program says that argand's kernel is to compute it
Sides = tuple[tuple[int, ...], tuple[int, ...]]

# C functions, and how many tensors and numbers they take.
_FUNCTIONS = {
    "product": (3, 8), "product_and_bias": (4, 8), "batched_product": (3, 12), "weight_gradient": (4, 15),
    "convolution": (3, 12), "convolution_and_bias": (4, 12),
}  # fmt: skip


def is_amd() -> bool:
    """Whether AMD made the processor."""
    return processor.facts().get("vendor_id") == "AuthenticAMD"


def available() -> bool:
    """Whether products can be computed here."""
    return background_kernels.available("avx512")


@functools.cache
def _compiled() -> Future[dict[str, Kernel]]:
    """The kernels, being compiled by a thread of their own; where they are only to be timed, nobody waits for them."""
    timed = config.cpp.own_products is None and PRODUCTS.known() is None and WEIGHT_GRADIENTS.known() is None
    return background_kernels.compiled("products", _FUNCTIONS, _compiled.cache_clear, patient=timed)


def prepare() -> None:
    """Begin to compile the kernels."""
    _compiled()


PRODUCTS = Rivals("products", is_amd, 0.98, "products")
# The library computes several gradients at once faster.
WEIGHT_GRADIENTS = Rivals("weight gradients", is_amd, 0.9, "products")


def own_wanted(rivals: Rivals) -> bool:
    """Whether argand's own kernel may be taken: it is faster, or nobody knows yet."""
    choice = config.cpp.own_products
    return (rivals.known() is not False if choice is None else bool(choice)) and available()


def key() -> str:
    """What programs with products depend on."""
    own = own_wanted(PRODUCTS), own_wanted(WEIGHT_GRADIENTS)
    return f"products {config.cpp.own_products} {own} {config.cpp.onednn_products}"


def ready() -> bool:
    """Whether the kernels are compiled, or nobody will have them."""
    return _compiled().done()


def matrix_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
    """`left @ right`, or `bias + left @ right` where three operands are given, in `out`.

    Arguments:
        operands: float32 matrices `left` (m, k) and `right` (k, n) of any strides, or batches of them; before matrices
            a contiguous `bias` (n) or nothing.
        out: (m, n), whose rows are contiguous, or a batch of such.
    """
    *bias, left, right = operands
    *batch, m, k = left.shape
    name = "batched_product" if batch else "product_and_bias" if bias else "product"
    kernel = _compiled().result().get(name)
    if kernel is None or not k:
        return _library_product(*operands, out=out)
    kernel(*operands, out, *batch, m, right.shape[-1], k, *left.stride(), *right.stride(), *out.stride()[:-1])
    return None


def measured_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
    """As `matrix_product`, by the library where that is faster."""
    _by_kind(_kind(operands), operands, out)


class MeasuredProduct:
    """A place in a program where `measured_product` takes operands of one kind: which way is faster is asked once."""

    __slots__ = ("_threads", "_way")

    def __init__(self) -> None:
        self._way: Callable[..., Any] = _library_product
        self._threads = 0  # for which that is the faster way; none yet

    def __call__(self, *operands: torch.Tensor, out: torch.Tensor) -> None:
        """The product, in `out`."""
        threads = torch.get_num_threads()
        if threads == self._threads and not torch.are_deterministic_algorithms_enabled():
            self._way(*operands, out=out)
            return
        kind = _kind(operands)
        _by_kind(kind, operands, out)
        own = PRODUCTS.taken(kind)
        if own is not None:
            self._way, self._threads = matrix_product if own else _library_way(operands, out), threads


def faster_product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`left @ right`, or that and a row, by the faster kernel, in `out` or a new tensor."""
    m, k = left.shape
    n = right.shape[1]
    operands = (left, right) if bias is None else (bias.contiguous(), left, right)
    out = left.new_empty(m, n) if out is None else out
    worth = m * k * n >= _WORTH_TIMING and min(m, k, n) >= 32 and own_wanted(PRODUCTS)
    (measured_product if worth else _library_product)(*operands, out=out)
    return out


def varying_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
    """As `measured_product`, where sizes vary from call to call: those that are alike are of one kind."""
    *bias, left, right = operands
    if left.numel() * right.shape[-1] < LEAST_TERMS:
        return _library_product(*operands, out=out)
    sizes = [tuple(map(_rounded, side.shape)) for side in (left, right)]
    steps = [tuple(step == 1 for step in side.stride()) for side in (left, right)]
    return _by_kind(("varying", *sizes, *steps, len(bias)), operands, out)


def kind_of(left: Sides, right: Sides, bias: int) -> Hashable:
    """What says which way is the faster.

    Arguments:
        left: sizes and strides of the left side.
        right: those of the right side.
        bias: 1 where a row is added.
    """
    return *left, *right, bias


def _kind(operands: Sequence[torch.Tensor]) -> Hashable:
    *bias, left, right = operands
    return kind_of((tuple(left.shape), left.stride()), (tuple(right.shape), right.stride()), len(bias))


def _rounded(size: int) -> int:
    """A size without what lies below its three leading bits."""
    below = max(size.bit_length() - 3, 0)
    return size >> below << below


def _by_kind(kind: Hashable, operands: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    own = PRODUCTS.taken(kind)
    if own is not None or not ready():
        return (matrix_product if own else _library_product)(*operands, out=out)
    return PRODUCTS.run(lambda: matrix_product(*operands, out=out), lambda: _library_product(*operands, out=out), kind)


def _library_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
    _library_way(operands, out)(*operands, out=out)


def _library_way(operands: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[..., Any]:
    return torch.addmm if len(operands) == 3 else torch.mm if out.ndim == 2 else torch.bmm


def weight_gradient_into(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: torch.Tensor) -> None:
    """The second result of `aten.convolution_backward(y, x, weight, *rest)`, no groups, in `out`; all contiguous."""
    kernel = _compiled().result().get("weight_gradient")
    if kernel is None:
        return _library_gradient((y, x, weight, *rest), out)
    _, stride, padding, dilation, *_ = rest
    batch, channels, high, wide = x.shape
    padded = batch * channels * (high + 2 * padding[0]) * (wide + 2 * padding[1])
    room = x.new_empty(padded + y.numel() + y.numel() // y.shape[1] + out[0].numel())
    kernel(y, x, out, room, *x.shape, *y.shape[1:], *out.shape[2:], *stride, *padding, *dilation)
    return None


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, step: int, before: int, apart: int
) -> torch.Tensor | None:
    """A convolution of signals, or of images by a window of one place, as a product; None where there is no kernel.

    Arguments:
        x: float32 (batch, channels, points), or images (batch, channels, ...), a channel's points one after the other.
        weight: contiguous (features, channels, places of a window, ...).
        bias: contiguous (features), or nothing.
        step: from window to window.
        before: zeros before a signal and after it.
        apart: from place to place of a window.
    """
    kernel = _compiled().result().get("convolution" if bias is None else "convolution_and_bias")
    if kernel is None:
        return None
    batch, channels, *size = x.shape
    features, taps = weight.shape[0], weight.shape[2]
    length = math.prod(size)
    points = size if len(size) > 1 else [(length + 2 * before - apart * (taps - 1) - 1) // step + 1]
    result = x.new_empty(batch, features, *points)
    numbers = batch, features, math.prod(points), channels, length, x.stride(0), x.stride(1), x.stride(-1)
    kernel(*(() if bias is None else (bias,)), weight, x, result, *numbers, taps, apart, step, before)
    return result


def measured_weight_gradient(*args: Any, out: torch.Tensor) -> None:
    """As `weight_gradient_into`, by the library where that is faster."""
    y, x, weight, _, *window = args
    kind = (y.shape, x.shape, weight.shape, *map(tuple, window[:3]))
    if WEIGHT_GRADIENTS.taken(kind) is None and not ready():
        return _library_gradient(args, out)
    return WEIGHT_GRADIENTS.run(
        lambda: weight_gradient_into(*args, out=out), lambda: _library_gradient(args, out), kind
    )


def _library_gradient(args: tuple[Any, ...], out: torch.Tensor) -> None:
    out.copy_(torch.ops.aten.convolution_backward.default(*args)[1])
