"""What is rewritten before a joint graph is cut into forward and backward: the cut chooses among the nodes it sees."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.meta import is_view
from argand.graph.nodes.program import AtenProgram
from argand.passes.bags import open_bags
from argand.passes.decompose import apply, replace
from argand.passes.decompositions import RULES
from argand.passes.randomness import functional_random

aten = torch.ops.aten

_NORMS = frozenset((aten.native_layer_norm.default, aten._fused_rms_norm.default))
_GROUP_NORMS = frozenset((aten.native_group_norm.default, aten.native_group_norm_backward.default))


def prepare_joint(program: AtenProgram) -> int:
    """Random ops become functions of a seed, norms that the backward reads and bags of embeddings become formulas, and
    fixed batch norms save nothing."""
    return functional_random(program) + open_norms(program) + drop_saved_statistics(program) + open_bags(program)


def drop_saved_statistics(program: AtenProgram) -> int:
    """Gradients of batch norms by given statistics read these alone: they need not be handed what the norm saves."""
    changes = 0
    for node in program.graph.nodes:
        if node.target is not aten.native_batch_norm_backward.default or node.args[7] is not False:
            continue
        if any(_picked_from_fixed(saved) for saved in node.args[5:7]):
            node.args = (*node.args[:5], *node.args[3:5], *node.args[7:])
            changes += 1
    return changes


def _picked_from_fixed(saved: object) -> bool:
    """Whether a node is a saved statistic of a batch norm by given ones."""
    if not isinstance(saved, fx.Node) or saved.target is not operator.getitem:
        return False
    norm = saved.args[0]
    assert isinstance(norm, fx.Node)
    return norm.target is aten.native_batch_norm.default and norm.args[5] is False


def open_norms(program: AtenProgram) -> int:
    """Decompose the norms whose results the backward reads, besides their own backward.

    It can then make such a result again from the norm's argument, which it reads anyway, and the moments: one kept
    tensor per norm instead of two.
    """
    return _open(program, lambda norm: norm.target in _NORMS and "backward" not in norm.meta and _read_again(norm))


def open_group_norms(program: AtenProgram) -> int:
    """Decompose norms of groups of channels and their gradients: the formulas compute in any layout."""
    return _open(program, lambda norm: norm.target in _GROUP_NORMS)


def _open(program: AtenProgram, wanted: Callable[[fx.Node], bool]) -> int:
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="open_norms")
    changes = 0
    for node in list(program.graph.nodes):
        if not wanted(node):
            continue
        with builder.at(node):
            parts = apply(RULES[node.target], builder, node)
            if parts is not NotImplemented:
                replace(builder, node, parts)
                changes += 1
    return changes


def _read_again(norm: fx.Node) -> bool:
    """Whether the backward reads the norm's first result, through views or not."""
    pending = [user for user in norm.users if user.target is operator.getitem and user.args[1] == 0]
    while pending:
        for user in pending.pop().users:
            if "backward" in user.meta:
                return True
            if is_view(user):
                pending.append(user)
    return False
