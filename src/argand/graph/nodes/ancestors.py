"""What nodes of a graph are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx


def all_arguments(node: fx.Node) -> list[fx.Node]:
    """Every node that a node is given."""
    return node.all_input_nodes


def ancestors(nodes: Iterable[fx.Node], arguments: Callable[[fx.Node], list[fx.Node]] = all_arguments) -> set[fx.Node]:
    """The nodes themselves, and what they are computed from.

    Arguments:
        arguments: which of the nodes that a node is given count.
    """
    above: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in above:
            above.add(node)
            pending += arguments(node)
    return above
