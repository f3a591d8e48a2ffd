"""Which library computes a matrix product.

ATen's CPU products go to MKL, which does not use all of an AMD processor. oneDNN, which torch has built in too, does:
on an EPYC 9004 (one thread, float32) it takes 0.71 to 0.95 of the time for products of more than 2**27 terms, but for
some whose left side is transposed.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from argand.config import config
from argand.graph.expr import ONE, as_int
from argand.ir.kernel import Schedule
from argand.ir.loops import Buffer, ExternNode, TensorRef

LEAST_TERMS = 1 << 27
INTO = "product_into"  # the function of `runtime.host` that stores a product of oneDNN's
WIDE = 1024  # columns of a result from which a transposed left side pays as well


@functools.cache
def _processor() -> str:
    """The CPU's maker, as Linux names it."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            return next((line.partition(":")[2].strip() for line in stream if line.startswith("vendor_id")), "")
    except OSError:
        return ""


def onednn_wanted() -> bool:
    """Whether products may go to oneDNN."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    choice = config.cpp.onednn_products
    return _processor() == "AuthenticAMD" and torch.backends.mkl.is_available() if choice is None else bool(choice)


def choose_products(schedule: Schedule) -> int:
    """Send the products to oneDNN that are faster there; returns how many."""
    if not onednn_wanted():
        return 0
    taken = {*schedule.aliases}
    changes = 0
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternNode) and taken.isdisjoint(name for name in step.outputs if name is not None):
            made = _as_onednn(step, schedule.buffers)
            if made is not None:
                if made.outputs[0] in schedule.kept:  # it has a place in a block: scattered, kept tensors cost memory
                    made = replace(made, args=made.args[:3], out_variant=INTO)
                schedule.steps[number] = made
                changes += 1
    return changes


def _as_onednn(node: ExternNode, buffers: dict[str, Buffer]) -> ExternNode | None:
    """The call of oneDNN that does the same; None where ATen's is to stay."""
    if node.kwargs or str(node.target) not in ("aten.mm.default", "aten.addmm.default"):
        return None
    *bias, left, right = node.args
    refs = (left, right, *bias)
    if not all(isinstance(ref, TensorRef) and _plain(ref, buffers[ref.buffer]) for ref in refs):
        return None
    if bias and not (len(bias[0].size) == 1 and bias[0].size[0] is right.size[1] and bias[0].stride[0] is ONE):
        return None
    m, k, n = as_int(left.size[0]), as_int(left.size[1]), as_int(right.size[1])
    if m is None or k is None or n is None or m * k * n < LEAST_TERMS or min(m, k, n) < 32:
        return None
    ways = [_direction(ref) for ref in (left, right)]
    if "" in ways or (ways[0] == "columns" and n < WIDE):
        return None
    weight = replace(right, size=right.size[::-1], stride=right.stride[::-1])
    target: Any = torch.ops.mkldnn._linear_pointwise.default
    args: tuple[Any, ...] = (left, weight, bias[0] if bias else None, "none", [], "")
    return replace(node, target=target, args=args, out_variant=None)


def _plain(ref: TensorRef, buffer: Buffer) -> bool:
    return buffer.dtype is torch.float32 and ref.dtype in (None, torch.float32) and buffer.device.type == "cpu"


def _direction(ref: TensorRef) -> str:
    """Whether a matrix lies in memory by rows or by columns."""
    if ref.stride[1] is ONE and ref.stride[0] is ref.size[1]:
        return "rows"
    return "columns" if ref.stride[0] is ONE and ref.stride[1] is ref.size[0] else ""
