"""Products with constant weights become products with weights of 8 bits (`options={"quantization": ...}`).

What follows a product (an activation, an addition that nothing pointwise follows) is computed with it, before its
result is rounded. Sizes of rows may be symbols.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import torch
from torch import fx

from argand.graph import compat
from argand.graph.metadata.strides import is_contiguous
from argand.graph.nodes.program import AtenProgram
from argand.graph.origin import NodeOrigin
from argand.passes.freezing.followers import follower, is_pointwise, other_of, replace
from argand.runtime.kernels.int8 import MOST_TERMS, int8_ops, packed_size

aten = torch.ops.aten

LEAST = 32  # rows and columns of a weight
_DTYPES: Final = (torch.float32, torch.bfloat16)
_UNARY: Final = {aten.relu.default: "relu", aten.silu.default: "silu", aten.gelu.default: "gelu"}


class Quantized:
    """What was done to a program.

    Fields:
        layers: name and size of each product that has a weight of 8 bits now.
        left: name of each that has not, with the reason.
        constant: nodes that follow from weights alone.
    """

    def __init__(self) -> None:
        self.layers: dict[str, tuple[int, int]] = {}
        self.left: dict[str, str] = {}
        self.constant: set[fx.Node] = set()
        self._weights: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}

    def weight(self, node: fx.Node, weight: fx.Node, dynamic: bool) -> tuple[fx.Node, fx.Node]:
        """A weight's integers and scales; of a weight that several products share once."""
        if weight not in self._weights:
            ops, val = int8_ops(), weight.meta["val"]
            flat = torch.empty(tuple(map(int, val.shape)), dtype=val.dtype, device="meta")
            scales = _new(weight.graph, node, ops.int8_scales, (weight,), ops.int8_scales(flat))
            size = packed_size(flat, scales.meta["val"], dynamic)
            integers = _new(weight.graph, node, ops.pack_int8, (weight, scales, dynamic), size)
            self._weights[weight] = integers, scales
            self.constant.update((integers, scales))
        return self._weights[weight]

    def __str__(self) -> str:
        lines = [f"{name}: 8 bits, weight of {rows} x {columns}" for name, (rows, columns) in self.layers.items()]
        return "\n".join([*lines, *(f"{name}: left as it is, {reason}" for name, reason in self.left.items())])


def quantize(program: AtenProgram, constant: Set[fx.Node], dynamic: bool) -> Quantized:
    """Rewrite a program in place.

    Arguments:
        constant: nodes whose values do not change.
        dynamic: rows become integers as well.
    """
    report, products = Quantized(), []
    for node in list(program.graph.nodes):
        if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
            continue
        reason = _refusal(node, constant)
        if reason:
            report.left[node.name] = reason
            continue
        new = _product(report, node, dynamic)
        products.append(new)
        rows, columns = node.args[-1].meta["val"].shape
        report.layers[new.name] = int(rows), int(columns)
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
    for node in products:
        if not _with_addition(node):
            _with_activation(node)
    return report


def _refusal(node: fx.Node, constant: Set[fx.Node]) -> str:
    """Why a product stays as it is; "" where it does not."""
    *bias, _, weight = node.args
    vals = [each.meta["val"] for each in node.args if isinstance(each, fx.Node)]
    if node.kwargs or len(vals) != len(node.args):
        return "it is no plain product"
    if weight not in constant:
        return "its right side is no parameter"
    if any(each.meta["device"].type != "cpu" for each in (node, *node.args)):
        return "it is not on the CPU"
    dtype = node.meta["val"].dtype
    if dtype not in _DTYPES or any(val.dtype is not dtype for val in vals):
        return f"it is of {str(dtype).removeprefix('torch.')}"
    rows, columns = vals[-1].shape
    if not all(isinstance(size, int) for size in (rows, columns)):
        return "the size of its weight is a symbol"
    if rows < LEAST or columns < LEAST:
        return f"its weight is small ({rows} x {columns})"
    if rows > MOST_TERMS:
        return f"its sums have more than {MOST_TERMS} terms"
    if bias and (len(vals[0].shape) != 1 or vals[0].shape[0] != columns or vals[0].stride(0) != 1):
        return "what is added is no row"
    val = node.meta["val"]
    return "" if is_contiguous(tuple(val.shape), val.stride()) else "its result is laid out by columns"


def _product(report: Quantized, node: fx.Node, dynamic: bool) -> fx.Node:
    *bias, x, weight = node.args
    with node.graph.inserting_before(node):
        integers, scales = report.weight(node, weight, dynamic)
        columns = int(weight.meta["val"].shape[1])
        args = (x, integers, scales, bias[0] if bias else None, None, columns, dynamic, "none")
        return _new(node.graph, node, int8_ops().int8_linear, args, node.meta["val"])


def _new(graph: fx.Graph, like: fx.Node, target: Any, args: tuple[Any, ...], val: Any) -> fx.Node:
    node: fx.Node = compat.new_node(graph, target, args, {})
    origin = like.meta.get("origin") or NodeOrigin()
    made_by = NodeOrigin(origin.source_node, origin.user_line, "quantize", origin.caller)
    node.meta.update(val=val, device=like.meta["device"], origin=made_by)
    return node


def _with_addition(node: fx.Node) -> bool:
    """Let a product add what is added to it alone; where more is computed with that, argand's kernel does it."""
    last, user = _reader(node)
    other = other_of(user, last) if user is not None and user.target is aten.add.Tensor else None
    if user is None or other is None or any(is_pointwise(each) for each in user.users):
        return False
    source = other.args[0] if other.target is aten.view.default else other
    if source.target is node.target and len(source.users) == 1 and node < source:
        return False
    with node.graph.inserting_before(user):
        flat = other if last is node else _viewed(node, other, node.meta["val"])
        product = _new(node.graph, node, node.target, (*node.args[:4], flat, *node.args[5:]), node.meta["val"])
        result = product if last is node else _viewed(node, product, user.meta["val"])
    replace(node.graph, (user,) if last is node else (user, last), result)
    node.graph.erase_node(node)
    return True


def _viewed(like: fx.Node, node: fx.Node, val: Any) -> fx.Node:
    """A contiguous node in other sizes."""
    return _new(node.graph, like, aten.view.default, (node, list(val.shape)), val)


def _with_activation(node: fx.Node) -> None:
    """Let a product compute the activation of its result, or of a view of all of it."""
    last, user = _reader(node)
    if user is None or user.target not in _UNARY:
        return
    name = _UNARY[user.target]
    if user.target is aten.gelu.default and user.kwargs.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    node.args = (*node.args[:-1], name)
    replace(node.graph, (user,), last)


def _reader(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """A node, or a view of all of it where that is its only reader, and the only reader of that."""
    user = follower(node)
    if user is None and len(node.users) == 1:
        view = next(iter(node.users))
        if view.target is aten.view.default and is_contiguous(tuple(view.meta["val"].shape), view.meta["val"].stride()):
            return view, follower(view)
    return node, user
