"""What autograd recorded, and what a graph says: the nodes behind tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx


def nodes(functions: Iterable[Any]) -> list[Any]:
    """Every node of autograd that leads to one of `functions`, these included."""
    seen: dict[Any, None] = {}
    pending = list(functions)
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen[node] = None
            pending += [function for function, _ in node.next_functions]
    return list(seen)


def leaves(functions: Iterable[Any]) -> list[torch.Tensor]:
    """Every leaf that a backward through `functions` would accumulate a gradient in."""
    by_id: dict[int, torch.Tensor] = {}
    for node in nodes(functions):
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            by_id[id(leaf)] = leaf
    return list(by_id.values())


def behind(node: fx.Node, passed: Callable[[fx.Node], bool] = lambda node: True) -> set[fx.Node]:
    """What leads to a node of a graph, itself included, by nodes that are `passed`."""
    work = [node] if passed(node) else []
    seen = set(work)
    while work:
        for one in work.pop().all_input_nodes:
            if one not in seen and passed(one):
                seen.add(one)
                work.append(one)
    return seen
