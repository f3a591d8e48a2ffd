"""What has to be done to a program for rounds of loops to look alike: each round reads its slices itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram
from argand.passes.cse import eliminate_common_subexpressions
from argand.passes.decompose import decompose
from argand.passes.decompositions import RULES
from argand.passes.padded_sums import join_padded_sums
from argand.passes.rolling.results import builder_of
from argand.passes.rolling.windows import is_slice

aten = torch.ops.aten

_GRADIENTS = {target: RULES[target] for target in (aten.select_backward.default, aten.slice_backward.default)}


def even_out(program: AtenProgram) -> None:
    """What all rounds compute is computed once, and each round reads its slices."""
    eliminate_dead(program.graph)
    eliminate_common_subexpressions(program)
    if decompose(program, _GRADIENTS):
        join_padded_sums(program)
    move_slices(program)


def move_slices(program: AtenProgram) -> None:
    """Read slices just before each node that uses them."""
    builder = builder_of(program)
    for node in list(program.graph.nodes):
        if node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
            continue
        source = _slice_of(node)
        if source is None:
            continue
        for user in list(node.users):
            if user.op == "output" or (user is node.next and len(node.users) == 1 and is_slice(node)):
                continue
            with builder.at(user):
                own = builder(*source)
            if _layout(own) != _layout(node):
                program.graph.erase_node(own)
                break
            user.replace_input_with(node, own)
        if not node.users:
            program.graph.erase_node(node)
    eliminate_dead(program.graph)


def _slice_of(node: fx.Node) -> tuple[Any, ...] | None:
    """The call that reads a slice."""
    if not is_slice(node):
        return None
    source: Any = node.args[0]
    dim, begin, *end = (int(arg) for arg in node.args[1:])
    dim, size = dim % source.meta["val"].ndim, source.meta["val"].shape
    if node.target is aten.select.int:
        return (aten.select.int, source, dim, begin % size[dim])
    return (aten.slice.Tensor, source, dim, begin, *end) if 0 <= begin < end[0] <= size[dim] else None


def _layout(node: fx.Node) -> tuple[Sequence[int], Sequence[int], torch.dtype]:
    val: Any = node.meta["val"]
    return tuple(val.shape), tuple(val.stride()), val.dtype
