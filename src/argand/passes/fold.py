"""Constant folding: what depends on literals alone is computed once, now."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import lies_densely
from argand.graph.nodes.meta import is_impure
from argand.graph.nodes.program import AtenProgram
from argand.interruptions import let_pass
from argand.passes.cse import returned_storages

_LIMIT = 1 << 16  # elements of a folded result: larger ones are cheaper to compute than to keep


def fold_without_numbers(program: AtenProgram) -> int:
    """`fold_constants` of a trace at one of many sizes: numbers may depend on these, also where results at all sizes
    that are compared are the same."""
    return fold_constants(program, numbers=False)


def fold_constants(program: AtenProgram, numbers: bool = True) -> int:
    """Replace calls whose tensor arguments are all literals by a literal of the result.

    Parameters and buffers are inputs, not literals: their values may change, so nothing is folded through them.

    Arguments:
        numbers: calls with numbers among their arguments are folded too.
    """
    graph = program.graph
    values: dict[fx.Node, torch.Tensor] = {}
    kept = returned_storages(graph)
    table = program.specs or SpecTable()
    folded = 0
    for node in list(graph.nodes):
        if node.op == "get_attr":
            values[node] = program.constants[str(node.target)]
            continue
        if not values or not _foldable(node, values) or node in kept or not (numbers or _without_numbers(node)):
            continue
        result = _evaluate(node, values)
        if result is None:
            continue
        name = _fresh_name(program)
        program.constants[name] = result
        with graph.inserting_before(node):
            literal = graph.get_attr(name)
        spec = table.make(tuple(result.shape), result.stride(), 0, result.dtype, result.device)
        literal.meta.update(val=spec.meta, device=result.device, origin=node.meta.get("origin"))
        node.replace_all_uses_with(literal)
        graph.erase_node(node)
        values[literal] = result
        folded += 1
    return folded


def _foldable(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    if node.op != "call_function" or node.target is operator.getitem or is_impure(node):
        return False
    inputs = node.all_input_nodes
    val = node.meta.get("val")
    return (
        bool(inputs)
        and all(arg in values for arg in inputs)
        and isinstance(val, torch.Tensor)
        and val.numel() <= _LIMIT
        and node.meta["device"].type == "cpu"
    )


def _without_numbers(node: fx.Node) -> bool:
    leaves = pytree.arg_tree_leaves(*node.args, **node.kwargs)
    return not any(isinstance(leaf, int | float | complex) and type(leaf) is not bool for leaf in leaves)


def _evaluate(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    def convert(tree: Any) -> Any:
        if isinstance(tree, fx.Node):
            return values[tree]
        return [convert(item) for item in tree] if isinstance(tree, (list, tuple)) else tree

    try:
        with torch.no_grad():
            result = node.target(*convert(node.args), **{k: convert(v) for k, v in node.kwargs.items()})
    except Exception as error:  # it will raise when the program runs, where it belongs
        let_pass(error)
        return None
    # A literal keeps no more memory than it shows, in the layout that the graph says.
    kept = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype) if lies_densely(result) else None
    return kept.copy_(result) if kept is not None else None


def _fresh_name(program: AtenProgram) -> str:
    number = len(program.constants)
    while f"_folded{number}" in program.constants:
        number += 1
    return f"_folded{number}"
