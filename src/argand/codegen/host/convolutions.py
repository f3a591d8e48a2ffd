"""Which weight gradients of convolutions are products of argand's own, and which convolutions and gradients oneDNN's.

oneDNN's are slow where a result has few points: on an EPYC 9004 (one thread, float32) a window of 3 x 3 over 512
channels and 7 x 7 points takes 16 ms, as a product of matrices 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from argand.config import config
from argand.graph.metadata.layouts import may_read_padding_only
from argand.graph.metadata.strides import is_contiguous
from argand.graph.sizes.expr import ONE, Expr, as_int
from argand.ir.kernel import Schedule, Step
from argand.ir.loops import Buffer, ExternNode, TensorRef
from argand.runtime.kernels import convolutions, products

# functions of `runtime.kernels.products`
OWN_GRADIENT, MEASURED_GRADIENT = "weight_gradient_into", "measured_weight_gradient"
# functions of `runtime.kernels.convolutions`
MEASURED_CONVOLUTION, MEASURED_VOLUME_GRADIENT = "measured_convolution", "measured_volume_gradient"
OWN_CONVOLUTION = "product_convolution"
FASTER_CONVOLUTION = "MeasuredConvolution()"  # one object for each call
MOST_POINTS = 196  # of a result
LEAST_TERMS = 1 << 22
LEAST_POINTS = 48
OWN_LEAST_TERMS = 1 << 16
OWN_LEAST_SIDES = 4, 4, 16  # features, terms of a sum and points: with fewer, argand's kernel is the slower anywhere


def returns_result(node: ExternNode) -> bool:
    """Whether a call returns a tensor of its own; others write to memory that they are given."""
    return node.out_variant in (None, MEASURED_CONVOLUTION, OWN_CONVOLUTION, FASTER_CONVOLUTION)


def choose_weight_gradients(schedule: Schedule, buffers: dict[str, Buffer], *, measured: bool) -> int:
    """Part the weight gradients that are products from the other gradients; returns how many.

    Arguments:
        buffers: those of the schedule that argand's CPU kernels may be called with.
        measured: the library's may turn out to be faster.
    """
    steps: list[Step] = []
    changes = 0
    for step in schedule.steps:
        name = MEASURED_GRADIENT if measured else OWN_GRADIENT
        parts: tuple[ExternNode, ...] = ()
        if isinstance(step, ExternNode) and _is_gradient(step) and _pays(step, buffers):
            parts = _parts(step, None, name)
        steps += parts or (step,)
        changes += bool(parts)
    schedule.steps[:] = steps
    return changes


def choose_convolutions(schedule: Schedule, buffers: dict[str, Buffer]) -> int:
    """Send convolutions to where they may be faster than with ATen; returns how many."""
    steps: list[Step] = []
    changes = 0
    own = products.own_wanted(convolutions.OWN)
    for step in schedule.steps:
        parts: tuple[ExternNode, ...] = ()
        if isinstance(step, ExternNode):
            way = MEASURED_CONVOLUTION if _by_onednn(step, buffers) else ""
            if not way and own and is_product(step, buffers):
                way = FASTER_CONVOLUTION if config.cpp.own_products is None else OWN_CONVOLUTION
            if way:
                parts = (replace(step, out_variant=way),)
            elif _is_gradient(step) and _is_of_a_volume(step, buffers):
                way = MEASURED_VOLUME_GRADIENT
                parts = _parts(step, way if step.args[-1][0] else None, way)
        steps += parts or (step,)
        changes += bool(parts)
    schedule.steps[:] = steps
    return changes


def _by_onednn(node: ExternNode, buffers: dict[str, Buffer]) -> bool:
    if str(node.target) != "aten.convolution.default" or node.kwargs or node.out_variant is not None:
        return False
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    image, window = _sizes(x, buffers), _sizes(weight, buffers)
    result = buffers.get(node.outputs[0] or "")
    if transposed or result is None or len(image) not in (4, 5) or len(window) != len(image):
        return False
    if bias is not None and len(_sizes(bias, buffers)) != 1:
        return False
    numbers = (*stride, *padding, *dilation, groups)
    if not all(isinstance(n, int) for n in numbers):
        return False
    if not convolutions.by_products(image, window, stride, dilation, groups):
        return False
    if may_read_padding_only(image[2:], window[2:], padding, dilation):
        return False
    points = [as_int(n) for n in result.size]
    if None in points or prod(int(n or 0) for n in points) * prod(window[1:]) < LEAST_TERMS:
        return False
    single = prod(window[2:]) == 1
    if single and x.stride[1] is not ONE:  # channel by channel ATen's way is the faster
        return False
    enough = single or prod(int(n or 0) for n in points[2:]) >= LEAST_POINTS  # of the result, to lay a weight out for
    return enough and convolutions.wanted(convolutions.rivals(window))


def is_product(node: ExternNode, buffers: dict[str, Buffer]) -> bool:
    """Whether argand's own kernel computes a convolution, and may be faster."""
    if str(node.target) != "aten.convolution.default" or node.kwargs or node.out_variant is not None:
        return False
    x, weight, bias, *rest = node.args
    image, window = _sizes(x, buffers), _shape(weight, buffers)
    result = buffers.get(node.outputs[0] or "")
    if result is None or not all(isinstance(n, int) for n in (*rest[0], *rest[1], *rest[2], rest[5])):
        return False
    if (bias is not None and not _shape(bias, buffers)) or not image:
        return False
    points = [as_int(n) for n in result.size]
    if None in points:
        return False
    if len(image) > 3 and not in_rows(x.size[2:], x.stride[2:]):
        return False
    if not in_rows(result.size, result.stride) or not convolutions.is_product(image, window, rest):
        return False
    sides = window[0], prod(window[1:]), prod(int(n or 0) for n in points[2:])
    if any(side < least for side, least in zip(sides, OWN_LEAST_SIDES)):
        return False
    return prod(sides) * image[0] >= OWN_LEAST_TERMS


def _sizes(ref: Any, buffers: dict[str, Buffer]) -> tuple[int, ...]:
    """The sizes of a float32 tensor of any layout; empty for another, or where sizes are symbols."""
    buffer = buffers.get(ref.buffer) if isinstance(ref, TensorRef) else None
    if buffer is None or buffer.dtype is not torch.float32 or ref.dtype not in (None, torch.float32):
        return ()
    sizes = tuple(n for n in map(as_int, ref.size) if n is not None)
    return sizes if len(sizes) == len(ref.size) else ()


def _is_gradient(node: ExternNode) -> bool:
    """Whether it computes the gradient of a weight that no groups share, as a library would."""
    if str(node.target) != "aten.convolution_backward.default" or node.kwargs or node.out_variant is not None:
        return False
    *_, transposed, _, groups, mask = node.args
    return bool(mask[1]) and not transposed and groups == 1


def _is_of_a_volume(node: ExternNode, buffers: dict[str, Buffer]) -> bool:
    """Whether oneDNN may be faster with the gradients of a volume."""
    given, x, weight, _, stride, _, dilation, *_ = node.args
    points, image, window = [_shape(ref, buffers) for ref in (given, x, weight)]
    known = len(points) == len(image) == len(window) == 5 and not any(
        n is None for n in map(as_int, (*stride, *dilation))
    )
    if not known or not convolutions.by_products(image, window, stride, dilation, 1):
        return False
    pays = prod(points) * prod(window[1:]) >= LEAST_TERMS and convolutions.can_halve(points[2:])
    return pays and convolutions.wanted(convolutions.VOLUMES)


def _parts(node: ExternNode, of_inputs: str | None, of_weights: str) -> tuple[ExternNode, ...]:
    """What replaces a step, its gradients computed one by one.

    Arguments:
        of_inputs, of_weights: functions that compute a gradient, without one the library.
    """
    of_input, of_weight, of_bias = node.outputs
    mask = node.args[-1]
    own = replace(node, name=f"{node.name}_weight", outputs=(of_weight,), out_variant=of_weights)
    parts = [replace(own, args=(*node.args[:-1], [False, True, False]))]
    if mask[0]:
        others = (*node.args[:-1], [True, False, False])
        outputs = (of_input, None, None) if of_inputs is None else (of_input,)
        parts.insert(0, replace(node, args=others, outputs=outputs, out_variant=of_inputs))
    if of_bias is not None:  # asked for it, oneDNN would compute the weight's gradient besides
        total = replace(node, name=f"{node.name}_bias", target=torch.ops.aten.sum.dim_IntList)
        dims = [0, *range(2, len(node.args[4]) + 2)]
        parts.append(replace(total, args=(node.args[0], dims), outputs=(of_bias,)))
    return tuple(parts)


def _pays(node: ExternNode, buffers: dict[str, Buffer]) -> bool:
    given, x, weight, _, stride, padding, dilation, *_ = node.args
    shapes = [_shape(ref, buffers) for ref in (given, x, weight)]
    of_weight = buffers.get(node.outputs[1] or "")
    if (
        not all(len(shape) == 4 for shape in shapes)
        or of_weight is None
        or not in_rows(of_weight.size, of_weight.stride)
    ):
        return False
    if any(len(pair) != 2 or not all(isinstance(n, int) for n in pair) for pair in (stride, padding, dilation)):
        return False
    points, window = prod(shapes[0][2:]), prod(shapes[2][1:])
    terms = prod(shapes[0]) * window
    padded = prod(shapes[1][:2]) * prod(n + 2 * p for n, p in zip(shapes[1][2:], padding))
    least = min(window, shapes[2][0], shapes[0][0] * points)
    return points <= MOST_POINTS and terms >= LEAST_TERMS and least >= 32 and padded < 1 << 31


def _shape(ref: Any, buffers: dict[str, Buffer]) -> tuple[int, ...]:
    """The sizes of a contiguous float32 tensor; empty for another, or where sizes are symbols."""
    if not isinstance(ref, TensorRef) or ref.dtype not in (None, torch.float32) or not in_rows(ref.size, ref.stride):
        return ()
    buffer = buffers.get(ref.buffer)
    if buffer is None or buffer.dtype is not torch.float32:
        return ()
    return tuple(n for n in map(as_int, ref.size) if n is not None)


def in_rows(size: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Whether a layout is row after row; sizes are numbers."""
    sizes, strides = ([n for n in map(as_int, numbers) if n is not None] for numbers in (size, stride))
    return len(sizes) == len(strides) == len(size) and is_contiguous(sizes, strides)
