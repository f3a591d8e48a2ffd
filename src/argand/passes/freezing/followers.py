"""What follows a product or a convolution in a graph, and may be computed with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.metadata import layouts


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node computes element by element."""
    return isinstance(node.target, torch._ops.OpOverload) and layouts.is_pointwise(node.target)


def follower(node: fx.Node) -> fx.Node | None:
    """The only reader of a node, if its result lies as the node's does."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if user.op == "call_function" and alike(user, node) else None


def other_of(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """What an addition adds to a node, laid out alike."""
    if len(user.args) != 2 or user.kwargs or user.args[0] is user.args[1]:
        return None
    other: Any = user.args[1] if user.args[0] is node else user.args[0]
    return other if isinstance(other, fx.Node) and alike(other, node) else None


def alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two results have the same sizes, strides and dtype."""
    vals = one.meta["val"], other.meta["val"]
    if any(isinstance(val, (tuple, list)) or not hasattr(val, "stride") for val in vals):
        return False
    return vals[0].shape == vals[1].shape and vals[0].stride() == vals[1].stride() and vals[0].dtype is vals[1].dtype


def replace(graph: fx.Graph, gone: tuple[fx.Node, ...], new: fx.Node) -> None:
    """`made` for the first of some nodes, which go."""
    gone[0].replace_all_uses_with(new)
    for node in gone:
        graph.erase_node(node)
