"""Common subexpressions: one node for equal calls on equal arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import is_impure, is_view
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.custom_backward import is_custom


def eliminate_common_subexpressions(program: AtenProgram) -> int:
    """Merge equal pure calls.

    A value that the program returns is never merged into another: the user gets tensors that do not share memory. Nor
    are operators of the program's own, which may draw random numbers, or count. Nor is what a backward computes of an
    input merged with what the forward did.
    """
    kept, whole = returned_storages(program.graph), program.kind == "inference"
    seen: dict[Any, fx.Node] = {}
    merged = 0
    for node in program.graph.nodes:
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op == "call_function" and node not in kept and not (is_impure(node) or _is_blank(node)):
            if is_custom(node.target):
                continue
            named = _key(tuple(node.kwargs.items())) if node.kwargs else ()
            key = (node.target, _key(node.args), named, whole and (_reads_later(node), node.meta.get("held_by")))
        else:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            program.graph.erase_node(node)
            merged += 1
    return merged


def returned_storages(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory (through views) leaves the graph as a result."""
    returned: set[fx.Node] = set()
    output = next(iter(reversed(graph.nodes)))
    for result in output.all_input_nodes:
        node = result
        returned.add(node)
        while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
            if not is_view(node) and node.target is not torch.ops.aten._unsafe_view.default:
                break
            node = node.args[0]
            returned.add(node)
    return returned


def _reads_later(node: fx.Node) -> bool:
    """A formula of the backward that reads an input itself, while both are one graph: the program may have set the
    input's data since (`parameter.data = ...`)."""
    return "backward" in node.meta and any(arg.op == "placeholder" for arg in node.all_input_nodes)


def _is_blank(node: fx.Node) -> bool:
    """Uninitialised memory is not a value that two nodes could share."""
    return str(getattr(node.target, "_opname", "")).startswith(("empty", "new_empty"))


def _key(tree: Any) -> Any:
    cls = tree.__class__
    if cls is fx.Node:
        return tree
    if cls is not int and isinstance(tree, (tuple, list)):
        return tuple([item if item.__class__ is fx.Node else _key(item) for item in tree])
    if cls is not int and isinstance(tree, float):
        return (float, tree.hex())  # tells 0.0 from -0.0, and finds equal nans
    return (cls, tree)
