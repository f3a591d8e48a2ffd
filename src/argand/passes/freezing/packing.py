"""Convolutions and linear layers with constant weights become oneDNN's, with weights that it laid out before.

What follows a convolution (an addition, an activation) is computed with it, in one pass over its result.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.layouts import may_read_padding_only
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import is_contiguous, suggests_channels_last
from argand.graph.nodes.program import AtenProgram
from argand.passes.freezing.followers import follower, is_pointwise, other_of, replace
from argand.runtime.kernels.packed_weights import packed_ops

aten = torch.ops.aten

Wanted = Callable[[fx.Node], bool]

# What oneDNN computes of a result before it stores it. Its ReLU and its clamping make zeros of what is no number: these
# stay argand's.
_UNARY: Final = {
    aten.hardswish.default: "hardswish",
    aten.silu.default: "swish",
    aten.gelu.default: "gelu",
}


def pack(program: AtenProgram, constant: set[fx.Node], wanted: Wanted) -> int:
    """Rewrite a program in place, and add what is constant then to `constant`; returns how many weights are packed.

    Arguments:
        wanted: says of a convolution or a product that could be oneDNN's whether it is to be.
    """
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="pack")
    packed_nodes = []
    for node in list(program.graph.nodes):
        if node.target is aten.convolution.default and _packs(node, constant) and wanted(node):
            packed_nodes.append(_convolution(builder, node, constant))
        elif node.target in (aten.mm.default, aten.addmm.default) and _is_linear(node, constant) and wanted(node):
            packed_nodes.append(_linear(builder, node, constant))
    for node in packed_nodes:
        if node.target is packed_ops().packed_linear or not _with_addition(builder, node):
            _with_activation(builder, node)
    return len(packed_nodes)


def _packs(node: fx.Node, constant: set[fx.Node]) -> bool:
    """Whether a convolution is one that oneDNN takes packed weights for, and whose result lies as is known."""
    x, weight, bias, *rest = node.args
    val = node.meta["val"]
    if weight not in constant or rest[3] or node.meta["device"].type != "cpu" or not _floats(x, weight, bias, node):
        return False
    image = x.meta["val"]
    if image.dim() != 4 or 0 in val.shape or 0 in image.shape:
        return False
    if may_read_padding_only(image.shape[2:], weight.meta["val"].shape[2:], *rest[1:3]):
        return False
    if prod(image.shape[2:]) == 1 == prod(val.shape[2:]):  # all layouts are one
        return True
    if image.shape[1] == 1 or val.shape[1] == 1 or 1 in (prod(image.shape[2:]), prod(val.shape[2:])):
        return False  # torch tells the layout of an image from its strides
    return all(suggests_channels_last(each.shape, each.stride()) for each in (image, val))


def _floats(*nodes: Any) -> bool:
    vals = [node.meta["val"] for node in nodes if node is not None]
    return all(isinstance(val, torch.Tensor) and val.dtype is torch.float32 for val in vals)


def _convolution(builder: Builder, node: fx.Node, constant: set[fx.Node]) -> fx.Node:
    x, weight, bias, stride, padding, dilation, _, _, groups = node.args
    window = [list(padding), list(stride), list(dilation), groups]
    ops = packed_ops()
    with builder.at(node):
        packed = builder(ops.pack_convolution, weight, *window, list(x.meta["val"].shape))
        packed_call: fx.Node = builder(ops.packed_convolution, x, packed, bias, *window, "none", [], "")
    packed_call.meta["val"] = node.meta["val"]  # strides of one point are as they were
    constant.add(packed)
    node.replace_all_uses_with(packed_call)
    builder.graph.erase_node(node)
    return packed_call


def _is_linear(node: fx.Node, constant: set[fx.Node]) -> bool:
    """Whether a product is one of rows with a constant matrix, with a row added or without."""
    *bias, x, weight = node.args
    if node.kwargs or weight not in constant or node.meta["device"].type != "cpu" or not _floats(*node.args, node):
        return False
    val, rows = node.meta["val"], x.meta["val"]
    row = all(each.meta["val"].shape == val.shape[1:] and each.meta["val"].stride() == (1,) for each in bias)
    return row and 0 not in rows.shape and 0 not in val.shape and is_contiguous(val.shape, val.stride())


def _linear(builder: Builder, node: fx.Node, constant: set[fx.Node]) -> fx.Node:
    *bias, x, weight = node.args
    ops = packed_ops()
    with builder.at(node):
        turned = builder(aten.permute.default, weight, [1, 0])
        rows = builder(aten.clone.default, turned, memory_format=torch.contiguous_format)
        packed = builder(ops.pack_linear, rows, x.meta["val"].shape[0])
        packed_call: fx.Node = builder(ops.packed_linear, x, packed, bias[0] if bias else None, "none", [], "")
    constant.update((turned, rows, packed))
    node.replace_all_uses_with(packed_call)
    builder.graph.erase_node(node)
    return packed_call


# ---------------------------------------------------------------------- what follows


def _with_addition(builder: Builder, node: fx.Node) -> bool:
    """Let a convolution add what is added to it alone; where more is computed with that, argand's kernel does it."""
    user = follower(node)
    other = _other(user, node) if user is not None and user.target is aten.add.Tensor else None
    if user is None or other is None or any(is_pointwise(each) for each in user.users):
        return False
    x, weight, bias, *window = node.args[:7]
    with builder.at(user):
        joined = builder(packed_ops().packed_convolution_and, x, other, weight, bias, *window, "add", 1.0, None, [], "")
    joined.meta["val"] = user.meta["val"]
    replace(builder.graph, (user, node), joined)
    return True


def _with_activation(builder: Builder, node: fx.Node) -> None:
    """Let oneDNN compute the activation of a result, or of a view of all of it."""
    last, user = node, follower(node)
    if user is None and len(node.users) == 1:
        view = next(iter(node.users))
        if view.target is aten.view.default:
            last, user = view, follower(view)
    if user is None or user.target not in _UNARY:
        return
    algorithm = str(user.kwargs.get("approximate", "none")) if user.target is aten.gelu.default else ""
    node.args = (*node.args[:-3], _UNARY[user.target], [], algorithm)
    replace(builder.graph, (user,), last)


def _other(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """What an addition adds to a node; None for what oneDNN does not add, or would add later."""
    other = other_of(user, node)
    if other is None:
        return None
    later = other.target is packed_ops().packed_convolution and len(other.users) == 1 and node < other
    return None if later else other
