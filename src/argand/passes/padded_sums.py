"""Sums of tensors that are zero outside of parts of their own: those parts, one after another.

The gradient of what a loop over time steps reads (`x[:, t]` for every t) is such a sum, of as many tensors of the whole
size as there are steps; as a `cat` it takes time in proportion to its size.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from itertools import pairwise
from typing import Final

import torch
from torch import fx

from argand.graph.compat import is_view_op
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.decompose import replace
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

# Of two that no memory is needed for, a loop that tests where it is costs no more than two loops.
LEAST_PARTS: Final = 3
_PRODUCTS: Final = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))


@dataclass(frozen=True, slots=True)
class _Part:
    """`value` at `start` along `dim`, zeros elsewhere."""

    value: fx.Node
    dim: int
    start: int
    end: int


def join_padded_sums(program: AtenProgram) -> int:
    """Rewrite sums of zero-padded tensors that do not overlap; returns how many."""
    graph = program.graph
    if sum(node.target is aten.constant_pad_nd.default for node in graph.nodes) < 2:
        return 0
    builder = Builder(graph, program.specs or SpecTable(), made_by="join_padded_sums")
    changes = 0
    for root in reversed(list(graph.nodes)):  # a sum is met before the smaller ones within it
        if not _is_sum(root) or (len(root.users) == 1 and _is_sum(next(iter(root.users)))):
            continue
        parts, others = _terms(root)
        joined, left = _disjoint(parts)
        whole = len(joined) == 2 and not others and not left and _whole(joined[0][0], joined[1][0], root)
        if len(joined) < LEAST_PARTS and not (whole and _in_memory(root)):
            continue
        program.orders += [(before[0].end, after[0].start) for before, after in pairwise(joined)]
        with builder.at(root):
            joined_sum = _joined(builder, [_summed(builder, same) for same in joined], list(root.meta["val"].shape))
            for other in (*others, *left):
                joined_sum = builder(aten.add.Tensor, other, joined_sum)
            if not others and not left:  # as where zeros are added: -0.0 becomes 0.0
                joined_sum = builder(aten.add.Tensor, joined_sum, 0.0)
            replace(builder, root, joined_sum)
        changes += 1
    return changes


def _whole(first: _Part, second: _Part, root: fx.Node) -> bool:
    """Whether two parts are all of a sum."""
    return (first.start, first.end, second.end) == (0, second.start, root.meta["val"].shape[first.dim])


def _in_memory(node: fx.Node) -> bool:
    """Whether a node's value is handed out, or to a product of matrices: loops do not compute it where it is read."""
    return any(
        user.op == "output" or user.target in _PRODUCTS or (is_view_op(user.target) and _in_memory(user))
        for user in node.users
    )


def _is_sum(node: fx.Node) -> bool:
    """Whether it adds two floating point tensors of its own shape and dtype."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs or not node.users:
        return False
    val = node.meta["val"]
    return bool(val.dtype.is_floating_point) and all(
        isinstance(arg, fx.Node) and arg.meta["val"].shape == val.shape and arg.meta["val"].dtype is val.dtype
        for arg in node.args
    )


def _terms(root: fx.Node) -> tuple[list[tuple[_Part, fx.Node]], list[fx.Node]]:
    """What a tree of additions adds up: padded tensors, and others, in order."""
    parts: list[tuple[_Part, fx.Node]] = []
    others: list[fx.Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if _is_sum(node) and (node is root or len(node.users) == 1):
            pending += [arg for arg in reversed(node.args) if isinstance(arg, fx.Node)]
            continue
        part = _part(node)
        if part is None:
            others.append(node)
        else:
            parts.append((part, node))
    return parts, others


def _part(node: fx.Node) -> _Part | None:
    """A tensor with zeros before and after it along one dimension."""
    if node.target is not aten.constant_pad_nd.default or (len(node.args) > 2 and node.args[2] != 0):
        return None
    source, pads = node.args[0], node.args[1]
    if not isinstance(source, fx.Node) or not isinstance(pads, (list, tuple)):
        return None
    size = source.meta["val"].shape
    padded = [place for place in range(len(pads) // 2) if pads[2 * place] or pads[2 * place + 1]]
    if len(padded) != 1 or not all(type(pad) is int and pad >= 0 for pad in pads):
        return None
    dim, start = len(size) - 1 - padded[0], pads[2 * padded[0]]
    assert isinstance(start, int)
    return _Part(source, dim, start, start + size[dim])


def _disjoint(parts: list[tuple[_Part, fx.Node]]) -> tuple[list[list[_Part]], list[fx.Node]]:
    """Parts along the dimension of most of them that do not overlap, in order, and the nodes of all others.

    Several that are at one place come together.
    """
    count: dict[int, int] = {}
    for part, _ in parts:
        count[part.dim] = count.get(part.dim, 0) + 1
    dim = max(count, key=lambda each: count[each], default=0)
    taken: list[list[_Part]] = []
    left: list[fx.Node] = []
    for part, node in sorted(parts, key=lambda pair: (pair[0].start, pair[0].end)):
        before = taken[-1][0] if taken else None
        if part.dim == dim and before is not None and (part.start, part.end) == (before.start, before.end):
            taken[-1].append(part)
        elif part.dim == dim and part.start < part.end and (before is None or part.start >= before.end):
            taken.append([part])
        else:
            left.append(node)
    return taken, left


def _summed(b: Builder, parts: list[_Part]) -> _Part:
    """The sum of parts at one place."""
    value = parts[0].value
    for part in parts[1:]:
        value = b(aten.add.Tensor, value, part.value)
    return with_fields(parts[0], value=value)


def _joined(b: Builder, parts: list[_Part], size: list[int]) -> fx.Node:
    """The parts one after another, each with the zeros that follow it."""
    dim = parts[0].dim
    ends = [part.start for part in parts[1:]] + [size[dim]]
    pieces = []
    for number, (part, end) in enumerate(zip(parts, ends)):
        before, after = (part.start if number == 0 else 0), end - part.end
        pads = [0] * (2 * (len(size) - dim))
        pads[-2:] = [before, after]
        pieces.append(b(aten.constant_pad_nd.default, part.value, pads, 0.0) if before or after else part.value)
    concatenated: fx.Node = b(aten.cat.default, pieces, dim)
    return concatenated
