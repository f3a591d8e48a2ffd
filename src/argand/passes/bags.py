"""Bags of embeddings that all hold equally many: rows that are looked up and added, whose gradient is the embedding's.

`nn.EmbeddingBag` with a matrix of positions makes such. The library's kernels sort the positions for the gradient, are
called once for each table, and go from element to element where a position counts as nothing or the largest are asked
for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.decompose import replace
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

_FORWARD = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
_BACKWARD = aten._embedding_bag_backward.default
_OF_WEIGHTS = aten._embedding_bag_per_sample_weights_backward.default
_SUM, _MEAN, _MAX = 0, 1, 2
_MANY: Final = 1 << 19
"""Elements of looked-up rows; where nothing but sums of so many floats is asked for, the library's loop is faster."""


@dataclass(frozen=True, slots=True)
class _Bags:
    """Positions in bags of `each`.

    Arguments:
        padding: the position that counts as nothing; -1 where none does.
        weights: of the rows.
    """

    positions: fx.Node
    each: int
    mode: int
    weights: fx.Node | None
    padding: int

    def matrix(self, b: Builder, x: fx.Node) -> fx.Node:
        """What there is one of for each position, a row for each bag."""
        node: fx.Node = b(aten.view.default, x, [-1, self.each])
        return node

    def counted(self, b: Builder, rows: fx.Node) -> fx.Node:
        """Rows, or other values of positions; zeros where these count as nothing."""
        if self.padding < 0:
            return rows
        mask = b(aten.eq.Scalar, self.matrix(b, self.positions), self.padding)
        if rows.meta["val"].dim() > 2:
            mask = b(aten.unsqueeze.default, mask, -1)
        node: fx.Node = b(aten.masked_fill.Scalar, rows, mask, 0.0)
        return node

    def divided(self, b: Builder, total: fx.Node) -> fx.Node:
        """What sums of bags, or their gradients, are divided by how many count in a mean."""
        if self.mode != _MEAN:
            return total
        if self.padding < 0:
            node: fx.Node = b(aten.div.Tensor, total, self.each)
            return node
        counts = b(aten.sum.dim_IntList, b(aten.ne.Scalar, self.matrix(b, self.positions), self.padding), [1], True)
        counts = b(aten._to_copy.default, b(aten.clamp_min.default, counts, 1), dtype=total.meta["val"].dtype)
        node = b(aten.div.Tensor, total, counts)
        return node


def open_bags(program: AtenProgram) -> int:
    """Rewrite bags and their gradients, in place; returns how many."""
    nodes = list(program.graph.nodes)
    opened = [(node, bags) for node in nodes if node.target in _FORWARD and (bags := _bags(node, node.args[1:9]))]
    if not opened:
        return 0
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="open_bags")
    changes = 0
    for node, bags in opened:
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        gradients = {user for position in (1, 2, 3) if position in parts for user in parts[position].users}
        if not all(_is_gradient_of(node, user) for user in gradients) or not _is_faster(node, bags, bool(gradients)):
            continue
        for gradient in gradients:
            with builder.at(gradient):
                rewritten = _of_weights if gradient.target is _OF_WEIGHTS else _gradient
                replace(builder, gradient, rewritten(builder, gradient, bags))
        for position in (1, 2, 3):
            if position in parts:
                program.graph.erase_node(parts[position])
        with builder.at(node):
            replace(builder, node, (_rows_added(builder, node, bags),))
        changes += 1 + len(gradients)
    return changes


def _is_faster(node: fx.Node, bags: _Bags, trained: bool) -> bool:
    """Whether loops take less time than the library, which has gradients of the largest that these have not."""
    if bags.mode == _MAX:
        return not trained and bags.padding < 0
    val: Any = node.meta["val"][0]
    if trained or bags.padding >= 0 or val.dtype is not torch.float32:
        return True
    elements = bags.positions.meta["val"].numel() * val.shape[1]
    return not isinstance(elements, int) or elements < _MANY


def _bags(node: fx.Node, given: Sequence[Any]) -> _Bags | None:
    """What a call puts into bags; None where these hold more or fewer, or gradients are sparse or scaled.

    Arguments:
        given: positions, where bags begin, whether to scale gradients by frequency, mode, whether gradients are
            sparse, weights of the rows, whether the last begin is an end, the position that counts as nothing.
    """
    filled: list[Any] = [*given, *_DEFAULTS[len(given) - 2 :]]
    positions, begins, scaled, mode, sparse, weights, with_last, padding = filled
    val = node.meta["val"]
    dtype = (val[0] if isinstance(val, (tuple, list)) else val).dtype
    if scaled or sparse or with_last or dtype not in (torch.float32, torch.float64) or not isinstance(begins, fx.Node):
        return None
    count = positions.meta["val"].numel()
    if begins.target is not aten.arange.start_step or begins.args[0] != 0 or begins.args[1] != count:
        return None
    step: Any = begins.args[2] if len(begins.args) > 2 else 1
    even = isinstance(step, int) and isinstance(count, int) and step > 0 and count % step == 0
    return _Bags(positions, step, mode, weights, padding) if even else None


_DEFAULTS = (False, _SUM, False, None, False, -1)


def _is_gradient_of(bag: fx.Node, node: fx.Node) -> bool:
    """Whether a node is a gradient of a bag, of the bag's own positions."""
    args: Any = node.args
    if node.target is _OF_WEIGHTS:
        return bool(args[1] is bag.args[0] and args[2:4] == bag.args[1:3])
    if node.target is not _BACKWARD or args[1:3] != bag.args[1:3]:
        return False
    scaled, mode, sparse, weights, *padding = args[7:]
    return _bags(node, (*args[1:3], scaled, mode, sparse, weights, False, *padding)) == _bags(bag, bag.args[1:9])


def _rows_added(b: Builder, node: fx.Node, bags: _Bags) -> fx.Node:
    rows = b(aten.embedding.default, node.args[0], bags.matrix(b, bags.positions))
    if bags.mode == _MAX:
        return _largest(b, rows)
    if bags.weights is not None:
        rows = b(aten.mul.Tensor, rows, b(aten.unsqueeze.default, bags.matrix(b, bags.weights), -1))
    return bags.divided(b, b(aten.sum.dim_IntList, bags.counted(b, rows), [1]))


def _largest(b: Builder, rows: fx.Node) -> fx.Node:
    """The first, or what is larger than all before: NaN is none such."""
    largest = b(aten.amax.default, b(aten.masked_fill.Scalar, rows, b(aten.isnan.default, rows), -math.inf), [1])
    first = b(aten.select.int, rows, 1, 0)
    node: fx.Node = b(aten.where.self, b(aten.isnan.default, first), first, largest)
    return node


def _gradient(b: Builder, node: fx.Node, bags: _Bags) -> fx.Node:
    given: Any = node.args
    grad = given[0]
    count, width = grad.meta["val"].shape
    one = bags.divided(b, grad)
    rows = b(aten.expand.default, b(aten.unsqueeze.default, one, 1), [count, bags.each, width])
    if bags.weights is not None:
        rows = b(aten.mul.Tensor, rows, b(aten.unsqueeze.default, bags.matrix(b, bags.weights), -1))
    where = bags.matrix(b, bags.positions)
    return b(aten.embedding_dense_backward.default, rows, where, given[6], bags.padding, False)


def _of_weights(b: Builder, node: fx.Node, bags: _Bags) -> fx.Node:
    """Of each weight, the product of its row and the bag's gradient."""
    given: Any = node.args
    rows = b(aten.embedding.default, given[1], bags.matrix(b, bags.positions))
    products = b(aten.mul.Tensor, rows, b(aten.unsqueeze.default, given[0], 1))
    each = bags.counted(b, b(aten.sum.dim_IntList, products, [2]))
    flat: fx.Node = b(aten.view.default, each, [-1])
    return flat
