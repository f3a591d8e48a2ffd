"""A first look at a graph, before anything is copied: whether rounds of a loop may be in it.

Rounds do the same to the same tensors, and to results of theirs; layers of a network look alike as well, but read
parameters of their own. So what reads a tensor that hardly anything else reads in this way parts the graph, and a loop
lies within a part: one with enough products, or with enough nodes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import is_view
from argand.passes.rolling import windows
from argand.passes.rolling.windows import is_product

_OTHER = 2  # rounds that may read other tensors: the first, and what is read of that is not within the part


def may_have_loops(graph: fx.Graph) -> bool:
    """Whether some part of a graph has what a loop's rounds have."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and not _is_view(node)]
    if not _is_enough(nodes):
        return False
    parts = _parts(nodes, [node for node in nodes if is_product(node)], set(nodes))
    parts = [smaller for part in parts for smaller in _parts(part, part, set(nodes))]
    return any(_parts(part, part, set(part)) for part in parts)


def _is_enough(nodes: Sequence[fx.Node]) -> bool:
    if len(nodes) >= windows.LEAST - _OTHER:
        return True
    return sum(map(is_product, nodes)) >= windows.LEAST_WITH_PRODUCTS - _OTHER


def _parts(nodes: Sequence[fx.Node], looked_at: Sequence[fx.Node], inside: Container[fx.Node]) -> list[list[fx.Node]]:
    """Nodes that follow each other without one of `looked_at` that is like few others, where these are enough."""
    kinds = {node: _kind(node, inside) for node in looked_at}
    often = Counter(kinds.values())
    often[None] = 0
    parts: list[list[fx.Node]] = [[]]
    for node in nodes:
        if node in kinds and often[kinds[node]] < windows.LEAST_WITH_PRODUCTS - _OTHER:
            parts.append([])
        else:
            parts[-1].append(node)
    return list(filter(_is_enough, parts))


def _kind(node: fx.Node, inside: Container[fx.Node]) -> tuple[Any, ...] | None:
    """What nodes of a place have in common in all rounds; None for what is not on the CPU."""
    device, val = node.meta.get("device"), node.meta.get("val")
    if device is not None and device.type != "cpu":
        return None
    size = (val.shape, val.dtype) if isinstance(val, torch.Tensor) else type(val)
    return (node.target, size, *(_made_of(read, inside) for read in node.all_input_nodes))


def _made_of(node: fx.Node, inside: Container[fx.Node]) -> Any:
    """What computed the tensor that a value is a view or cast of; where that is not `inside`, the tensor itself."""
    while _is_view(node) or node.target is torch.ops.aten._to_copy.default:
        node = node.all_input_nodes[0]
    return node.target if node in inside else node


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or is_view(node)
