"""Bags of embeddings that all hold equally many: rows that are looked up and added, whose gradient is the embedding's.

`nn.EmbeddingBag` with a matrix of positions makes such. The library's kernels sort the positions for the gradient, and
are called once for each table.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.decompose import replace

aten = torch.ops.aten

_FORWARD = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
_BACKWARD = aten._embedding_bag_backward.default
_SUM, _MEAN = 0, 1


def open_bags(program: AtenProgram) -> int:
    """Rewrite bags and their gradients, in place; returns how many."""
    nodes = list(program.graph.nodes)
    bags = [node for node in nodes if node.target in _FORWARD and _length(node, node.args[1:9])]
    if not bags:
        return 0
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="open_bags")
    changes = 0
    for bag in bags:
        parts = {user.args[1]: user for user in bag.users if user.target is operator.getitem}
        gradients = {user for position in (1, 2, 3) if position in parts for user in parts[position].users}
        if not all(_is_gradient_of(bag, user) for user in gradients):
            continue
        for node in gradients:
            with builder.at(node):
                replace(builder, node, _gradient(builder, node))
        for position in (1, 2, 3):
            if position in parts:
                program.graph.erase_node(parts[position])
        with builder.at(bag):
            replace(builder, bag, (_rows_added(builder, bag),))
        changes += 1 + len(gradients)
    return changes


def _length(node: fx.Node, given: tuple[Any, ...]) -> int:
    """How many rows each bag adds up; 0 where that differs, or for what is no plain sum or mean.

    Arguments:
        given: positions, where bags begin, whether to scale gradients by frequency, mode, whether gradients are
            sparse, weights of the rows, whether the last begin is an end, the position that counts as nothing.
    """
    filled: list[Any] = [*given, *_DEFAULTS[len(given) - 2 :]]
    positions, begins, scaled, mode, sparse, weights, with_last, padding = filled
    val = node.meta["val"]
    dtype = (val[0] if isinstance(val, (tuple, list)) else val).dtype
    if scaled or sparse or weights is not None or with_last or padding >= 0 or mode not in (_SUM, _MEAN):
        return 0
    if dtype not in (torch.float32, torch.float64) or not isinstance(begins, fx.Node):
        return 0
    count = positions.meta["val"].numel()
    if begins.target is not aten.arange.start_step or begins.args[0] != 0 or begins.args[1] != count:
        return 0
    step = _rows_of_each(begins)
    return step if isinstance(step, int) and isinstance(count, int) and step > 0 and count % step == 0 else 0


_DEFAULTS = (False, _SUM, False, None, False, -1)


def _rows_of_each(begins: fx.Node) -> Any:
    return begins.args[2] if len(begins.args) > 2 else 1


def _is_gradient_of(bag: fx.Node, node: fx.Node) -> bool:
    """Whether a node is the gradient of a bag's table, of the bag's own positions."""
    if node.target is not _BACKWARD or node.args[1:3] != bag.args[1:3]:
        return False
    scaled, mode, sparse, weights, *padding = node.args[7:]
    return _length(node, (*node.args[1:3], scaled, mode, sparse, weights, False, *padding)) > 0


def _rows_added(b: Builder, bag: fx.Node) -> fx.Node:
    given: Any = bag.args
    table, positions, begins, *rest = given
    each = _rows_of_each(begins)
    rows = b(aten.embedding.default, table, b(aten.view.default, positions, [-1, each]))
    total = b(aten.sum.dim_IntList, rows, [1])
    return b(aten.div.Tensor, total, each) if rest[1:2] == [_MEAN] else total


def _gradient(b: Builder, node: fx.Node) -> fx.Node:
    given: Any = node.args
    grad, positions, begins = given[:3]
    each = _rows_of_each(begins)
    bags, width = grad.meta["val"].shape
    one = b(aten.div.Tensor, grad, each) if given[8] == _MEAN else grad
    rows = b(aten.expand.default, b(aten.unsqueeze.default, one, 1), [bags, each, width])
    where = b(aten.view.default, positions, [-1, each])
    return b(aten.embedding_dense_backward.default, rows, where, given[6], -1, False)
