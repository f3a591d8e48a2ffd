"""Which library computes a matrix product.

ATen's CPU products go to MKL, which does not use all of an AMD processor. With AVX-512, argand's own kernel
does (`runtime.kernels.products`: on an EPYC 9004, one thread, float32, it takes 0.82 to 0.97 of MKL's time, and its
errors are smaller): it is taken where it was found faster, and timed where nobody knows. oneDNN, which torch has built
in too, can be faster for products of more than 2**27 terms, but for some whose left side is transposed; its largest
error is two to four times MKL's where more than 200 products are added up, so that it is used where the user asks for
it only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from argand.codegen.host.calls import MEASURED_PRODUCT
from argand.codegen.host.convolutions import choose_convolutions, choose_weight_gradients, is_product
from argand.codegen.host.library_products import choose_direct
from argand.config import config
from argand.graph.sizes.expr import ONE, as_int
from argand.ir.kernel import Schedule
from argand.ir.loops import Buffer, ExternNode, Program, TensorRef
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels import convolutions, products

LEAST_TERMS = 1 << 27
LEAST_SIDE = 32  # of what goes to oneDNN
OWN_LEAST_TERMS = products.LEAST_TERMS
OWN_LEAST_SIDES = 4, 8, 16  # rows, terms of a sum and columns: with fewer, argand's kernel is the slower anywhere
FEW_ROWS = 128  # of a left side, up to which oneDNN is the faster
OWN, MEASURED, VARYING = "matrix_product", MEASURED_PRODUCT, "varying_product"  # of `runtime.kernels.products`
PADDED = "padded_product"  # the function of `runtime.gpu.operators.products`
PADDED_LEAST_TERMS = 1 << 30  # below, appending zeros costs as much as it saves
INT8 = "int8_linear"  # the function of `runtime.kernels.int8`
INTO = "product_into"  # the function of `runtime.host` that stores a product of oneDNN's
WIDE = 1024  # columns of a result from which a transposed left side pays as well


_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default")


def onednn_wanted() -> bool:
    """Whether products may go to oneDNN."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    return bool(config.cpp.onednn_products)


def choose_products(schedule: Schedule) -> int:
    """Send products to where they are faster than with ATen; returns how many."""
    buffers = schedule.host_buffers()
    changes = _choose_padded(schedule, buffers) + choose_direct(schedule)
    if not buffers:
        return changes
    changes += _choose_own(schedule, buffers) + choose_convolutions(schedule, buffers) + _choose_int8(schedule)
    if not onednn_wanted():
        return changes
    taken = {*schedule.aliases}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternNode) and taken.isdisjoint(name for name in step.outputs if name is not None):
            call = _as_onednn(step, buffers)
            if call is not None:
                if call.outputs[0] in schedule.kept:  # it has a place in a block: scattered, kept tensors cost memory
                    call = replace(call, args=call.args[:3], out_variant=INTO)
                schedule.steps[number] = call
                changes += 1
    return changes


def begin_kernels(program: Program) -> None:
    """Begin to compile the kernels that products of a program may go to, while the program is being compiled."""
    buffers = {name: buffer for name, buffer in program.buffers.items() if buffer.device.type == "cpu"}
    calls = [node for node in program.nodes if isinstance(node, ExternNode)]
    by_products = calls if products.own_wanted(products.PRODUCTS) else ()
    by_convolutions = calls if products.own_wanted(convolutions.OWN) else ()
    if any(_own(node, buffers, measured=True) for node in by_products) or any(
        is_product(node, buffers) for node in by_convolutions
    ):
        products.prepare()


def _choose_padded(schedule: Schedule, host_buffers: dict[str, Buffer]) -> int:
    """Products of 16-bit floats on a GPU whose rows do not begin at multiples of 16 bytes; returns how many."""
    changes = 0
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternNode) and step.out_variant in ("torch.mm", "torch.addmm"):
            if step.outputs[0] not in host_buffers and wants_zeros(step, schedule.buffers):
                schedule.steps[number] = replace(step, out_variant=PADDED)
                changes += 1
    return changes


def wants_zeros(node: ExternNode, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a product on a GPU is faster with zeros appended."""
    if node.kwargs or not all(isinstance(arg, TensorRef) for arg in node.args):
        return False
    *bias, left, right = node.args
    if any(len(ref.size) != 1 for ref in bias):
        return False
    if any(buffers[ref.buffer].dtype not in (torch.bfloat16, torch.float16) or ref.dtype for ref in node.args):
        return False
    m, k, n = as_int(left.size[0]), as_int(left.size[1]), as_int(right.size[1])
    if m is None or k is None or n is None or m * k * n < PADDED_LEAST_TERMS or min(m, k, n) < 64:
        return False
    steps = [as_int(step) for ref in (left, right) for step in ref.stride if step is not ONE]
    return bool(k % 8 or n % 8 or any(step is not None and step % 8 for step in steps))


def _choose_own(schedule: Schedule, buffers: dict[str, Buffer]) -> int:
    changes = 0
    measured = config.cpp.own_products is None
    for number, step in enumerate(schedule.steps) if products.own_wanted(products.PRODUCTS) else ():
        if isinstance(step, ExternNode) and (way := _own(step, buffers, measured=measured)):
            schedule.steps[number] = replace(step, out_variant=way)
            changes += 1
    if products.own_wanted(products.WEIGHT_GRADIENTS):
        changes += choose_weight_gradients(schedule, buffers, measured=measured)
    if changes and not measured:
        products.prepare()  # the first call needs them
    return changes


def _choose_int8(schedule: Schedule) -> int:
    """Products with weights of 8 bits store their results where the schedule has room for them; returns how many."""
    changes = 0
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternNode) and str(step.target) == "argand.int8_linear.default":
            schedule.steps[number] = replace(step, out_variant=INT8)
            changes += 1
    return changes


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of float32 matrices, or of batches of them, with a row to add or without."""

    left: TensorRef
    right: TensorRef
    bias: TensorRef | None
    sides: tuple[int | None, int | None, int | None]  # rows, terms of a sum, columns; None: not known
    terms: int | None  # None where a size is not known


def _product(node: ExternNode, buffers: dict[str, Buffer]) -> _Product | None:
    """The product that a step is; None for other steps."""
    if node.kwargs or str(node.target) not in _PRODUCTS:
        return None
    *bias, left, right = node.args
    if not all(isinstance(ref, TensorRef) and _plain(ref, buffers.get(ref.buffer)) for ref in node.args):
        return None
    if bias and not (len(bias[0].size) == 1 and bias[0].size[0] is right.size[1] and bias[0].stride[0] is ONE):
        return None
    sides = as_int(left.size[-2]), as_int(left.size[-1]), as_int(right.size[-1])
    sizes = [*map(as_int, left.size), sides[2]]
    terms = None if None in sizes else prod(int(size or 0) for size in sizes)
    return _Product(left, right, bias[0] if bias else None, sides, terms)


def _own(node: ExternNode, buffers: dict[str, Buffer], *, measured: bool) -> str:
    """The function that computes a step, if it is a product that argand's kernel may be faster for; "" otherwise."""
    product = _product(node, buffers) if node.out_variant is not None else None
    if product is None or not all(ONE in ref.stride[-2:] for ref in (product.left, product.right)):
        return ""
    if buffers[node.outputs[0] or ""].stride[-1] is not ONE:
        return ""
    if any(side is not None and side < least for side, least in zip(product.sides, OWN_LEAST_SIDES)):
        return ""
    if product.terms is None:
        return VARYING if measured else OWN
    few = product.sides[0] is not None and product.sides[0] <= FEW_ROWS
    if onednn_wanted() and few and product.terms >= LEAST_TERMS and _direction(product.left) == "rows":
        return ""
    if product.terms < OWN_LEAST_TERMS or (measured and products.PRODUCTS.taken(_kind(product)) is False):
        return ""
    return MEASURED if measured else OWN


def _kind(product: _Product) -> Hashable:
    left, right = (
        (tuple(int(as_int(n) or 0) for n in ref.size), tuple(int(as_int(n) or 0) for n in ref.stride))
        for ref in (product.left, product.right)
    )
    return products.kind_of(left, right, int(product.bias is not None))


def _as_onednn(node: ExternNode, buffers: dict[str, Buffer]) -> ExternNode | None:
    """The call of oneDNN that does the same; None where ATen's is to stay."""
    product = _product(node, buffers) if node.out_variant not in (OWN, MEASURED, VARYING) else None
    if product is None or product.terms is None or product.terms < LEAST_TERMS or len(product.left.size) != 2:
        return None
    if min(int(side or 0) for side in product.sides) < LEAST_SIDE:
        return None
    ways = [_direction(ref) for ref in (product.left, product.right)]
    if "" in ways or (ways[0] == "columns" and int(product.sides[2] or 0) < WIDE):
        return None
    weight = replace(product.right, size=product.right.size[::-1], stride=product.right.stride[::-1])
    target: Any = torch.ops.mkldnn._linear_pointwise.default
    args: tuple[Any, ...] = (product.left, weight, product.bias, "none", [], "")
    return replace(node, target=target, args=args, out_variant=None)


def _plain(ref: TensorRef, buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.dtype is torch.float32 and ref.dtype in (None, torch.float32)


def _direction(ref: TensorRef) -> str:
    """Whether a matrix lies in memory by rows or by columns."""
    if ref.stride[1] is ONE and ref.stride[0] is ref.size[1]:
        return "rows"
    return "columns" if ref.stride[0] is ONE and ref.stride[1] is ref.size[0] else ""
