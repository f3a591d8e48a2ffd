"""Values that a loop over time steps keeps for the backward: one tensor for all rounds, which both programs roll."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.recompute import is_fusible
from argand.config import config
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import is_contiguous
from argand.graph.nodes.program import AtenProgram, copied
from argand.passes.rolling.first_look import may_have_loops
from argand.passes.rolling.slices import even_out
from argand.passes.rolling.windows import (
    LEAST_WITH_PRODUCTS,
    MOST_ELEMENTS,
    MOST_ELEMENTS_WITH_PRODUCTS,
    Loop,
    find_loop,
    is_product,
)

aten = torch.ops.aten

_MOST_LOOPS = 8
_IN_KERNELS = (
    aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten._softmax.default, aten.native_layer_norm.default,
    aten.slice_scatter.default, aten.select_scatter.default, aten.clone.default, aten.copy.default,
    aten.embedding.default, aten._unsafe_view.default,
)  # fmt: skip


def rounds_kept(
    forward: AtenProgram, joint_of: Mapping[fx.Node, fx.Node], kept: Collection[fx.Node]
) -> list[list[fx.Node]]:
    """Values of consecutive rounds that are to be kept, by the joint graph's nodes.

    Arguments:
        joint_of: for nodes of the forward that the backward reads, directly or not, the joint graph's.
        kept: those of the latter that are kept. What a round hands to the next is kept too: computed again, it would
            be a loop of its own.
    """
    if forward.scalars or "roll_loops" in str(config.disabled_passes) or not config.fusion:
        return []
    if len(kept) < LEAST_WITH_PRODUCTS or not may_have_loops(forward.graph):
        return []
    program = copied(forward)
    original = dict(zip(program.graph.nodes, forward.graph.nodes))
    even_out(program)
    owner = {node: joint_of[other] for node, other in original.items() if other in joint_of}
    groups: list[list[fx.Node]] = []
    taken: set[fx.Node] = set()
    known = set(kept)
    for _ in range(_MOST_LOOPS):
        loop = find_loop(program.graph, taken)
        if loop is None:
            break
        taken |= loop.nodes
        if _may_be_rolled(loop):
            groups += _groups(loop, owner, known)
    return groups


def _may_be_rolled(loop: Loop) -> bool:
    """Whether a round, on a CPU, has products that `steps` computes, and else what becomes part of kernels."""
    most = MOST_ELEMENTS_WITH_PRODUCTS if loop.has_products else MOST_ELEMENTS
    for node in loop.rounds[1]:
        val = node.meta["val"]
        if node.meta["device"].type != "cpu" or (isinstance(val, torch.Tensor) and val.numel() > most):
            return False
        if is_product(node) and val.dtype not in (torch.float32, torch.float64):
            return False
        if not (is_product(node) or is_fusible(node) or node.target in _IN_KERNELS):
            return False
    return True


def _groups(loop: Loop, owner: Mapping[fx.Node, fx.Node], kept: Container[fx.Node]) -> list[list[fx.Node]]:
    groups: list[list[fx.Node]] = []
    for offset, node in enumerate(loop.rounds[1]):
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor) or not is_contiguous(tuple(val.shape), val.stride()):
            continue
        group: list[fx.Node] = []
        for each in loop.rounds:
            joint = owner.get(each[offset])
            if joint is not None and (joint in kept or offset in loop.carried):
                group.append(joint)
            elif group:
                break
        if len(group) >= LEAST_WITH_PRODUCTS:
            groups.append(group)
    return groups


def stacked(program: AtenProgram, graph: fx.Graph, nodes: Sequence[fx.Node]) -> fx.Node:
    """One tensor of values, at the end of a graph."""
    stack: fx.Node = _builder(program, graph)(aten.stack.default, list(nodes))
    return stack


def unstacked(program: AtenProgram, graph: fx.Graph, name: str, like: fx.Node, count: int) -> tuple[fx.Node, Any]:
    """A graph's input of so many values, and a function that reads one, at the end of the graph."""
    val, device = like.meta["val"], like.meta["device"]
    placeholder = graph.placeholder(name)
    placeholder.meta.update(like.meta)
    placeholder.meta["val"] = torch.empty((count, *val.shape), dtype=val.dtype, device=val.device)
    placeholder.meta["device"] = device
    builder = _builder(program, graph)
    return placeholder, lambda number: builder(aten.select.int, placeholder, 0, number)


def _builder(program: AtenProgram, graph: fx.Graph) -> Builder:
    return Builder(graph, program.specs or SpecTable(), made_by="partition")
