"""A program with constant inputs cut in two: what is computed of these alone, and the rest, which is called with it."""

from __future__ import annotations

from collections.abc import Iterable, Set

import torch
from torch import fx

from argand.graph import compat
from argand.graph.nodes.ancestors import ancestors
from argand.graph.nodes.meta import eliminate_dead, is_impure
from argand.graph.nodes.program import AtenProgram, InputSpec, copied, spec_of

_GROWS = 2  # times the bytes that it is computed of: a larger value is computed in each call
_SMALL = 1 << 16  # bytes that any value may have


def constant_nodes(program: AtenProgram, inputs: Iterable[int]) -> set[fx.Node]:
    """The nodes whose values follow from constant inputs alone.

    Arguments:
        inputs: positions of those.
    """
    placeholders = program.placeholders
    constant = {placeholders[position] for position in inputs}
    for node in program.graph.nodes:
        sources = node.all_input_nodes
        follows = node.op == "call_function" and sources and constant.issuperset(sources) and not is_impure(node)
        if follows or node.op == "get_attr":
            constant.add(node)
    return constant


def part(program: AtenProgram, constant: Set[fx.Node]) -> AtenProgram | None:
    """Cut what is computed of constants alone from a program, in place; returns that part, None where there is none.

    It has the same inputs, and gives the values that the rest gets as further inputs, after its own. What of them is a
    view stays where it is read: it costs nothing there.
    """
    frontier = [node for node in program.graph.nodes if _is_kept(node, constant)]
    if not frontier:
        return None
    first = copied(program)
    by_name = {node.name: node for node in first.graph.nodes}
    output = first.output_node
    output.args = (tuple(by_name[node.name] for node in frontier),)
    eliminate_dead(first.graph)
    first.outputs, first.mutations, first.kept = [], [], frozenset()
    last = program.placeholders[-1]
    for node in frontier:
        with program.graph.inserting_after(last):
            last = program.graph.placeholder(f"frozen_{node.name}")
        last.meta = {key: node.meta[key] for key in ("val", "device", "origin") if key in node.meta}
        program.inputs.append(InputSpec(last.name, "arg", program.num_args, spec_of(last)))
        program.num_args += 1
        node.replace_all_uses_with(last)
    eliminate_dead(program.graph)
    return first


def _is_kept(node: fx.Node, constant: Set[fx.Node]) -> bool:
    """Whether a constant is read by what is no constant, and worth its memory."""
    if node not in constant or node.op != "call_function" or _is_view(node):
        return False
    if not isinstance(node.meta["val"], torch.Tensor) or not _is_read(node, constant):
        return False
    val = node.meta["val"]
    size = val.numel() * val.element_size()
    inputs = [each.meta["val"] for each in ancestors([node]) if each.op == "placeholder"]
    given = sum(val.numel() * val.element_size() for val in inputs)
    return size <= max(_GROWS * given, _SMALL)


def _is_read(node: fx.Node, constant: Set[fx.Node]) -> bool:
    """Whether a node, or a view of it, is read by what is no constant; results are copies of their own."""
    for user in node.users:
        if user.op != "output" and (user not in constant or (_is_view(user) and _is_read(user, constant))):
            return True
    return False


def _is_view(node: fx.Node) -> bool:
    return compat.is_view_op(node.target)
