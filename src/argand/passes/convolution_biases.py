"""Biases of convolutions as operations of their own, where a library adds them in a kernel of its own anyway.

What is computed from the convolution then adds the bias in its kernel, and the sum that is the bias's gradient joins
what computes the convolution's gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram

aten = torch.ops.aten


def part_biases(program: AtenProgram, wanted: Callable[[torch.device], bool]) -> int:
    """Part the biases of convolutions from them, in place, and their gradients from the other gradients.

    Arguments:
        wanted: says of a device whether its convolutions shall be without biases.

    Returns:
        how many convolutions and gradients are without one then.
    """
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="part_biases")
    changes = 0
    for node in list(program.graph.nodes):
        parts = _PARTS.get(node.target)
        if parts is not None and isinstance(node.meta["device"], torch.device) and wanted(node.meta["device"]):
            changes += parts(builder, node)
    return changes


def _part_bias(builder: Builder, node: fx.Node) -> bool:
    x, weight, bias, *rest = node.args
    val = node.meta["val"]
    if not isinstance(bias, fx.Node) or not isinstance(val, torch.Tensor):
        return False
    with builder.at(node):
        plain = builder(node.target, x, weight, None, *rest)
        per_channel = builder(aten.view.default, bias, [1, -1, *[1] * (val.dim() - 2)])
        whole = builder(aten.add.Tensor, plain, per_channel)
    if whole.meta["val"].stride() != val.stride() or whole.meta["val"].dtype != val.dtype:
        for needless in (whole, per_channel, plain):
            builder.graph.erase_node(needless)
        return False
    node.replace_all_uses_with(whole)
    builder.graph.erase_node(node)
    return True


def _part_bias_gradient(builder: Builder, node: fx.Node) -> bool:
    grad, mask = node.args[0], node.args[-1]
    picked = [user for user in node.users if user.target is operator.getitem and user.args[1] == 2]
    if not isinstance(grad, fx.Node) or not isinstance(grad.meta["val"], torch.Tensor) or not mask[2] or not picked:
        return False
    dims = [0, *range(2, grad.meta["val"].dim())]
    with builder.at(node):
        total = builder(aten.sum.dim_IntList, grad, dims)
    for user in picked:
        user.replace_all_uses_with(total)
        builder.graph.erase_node(user)
    if not any(mask[:2]):
        builder.graph.erase_node(node)
        return True
    node.args = (*node.args[:-1], [*mask[:2], False])
    node.meta["val"] = (*node.meta["val"][:2], None)
    return True


_PARTS = {aten.convolution.default: _part_bias, aten.convolution_backward.default: _part_bias_gradient}
