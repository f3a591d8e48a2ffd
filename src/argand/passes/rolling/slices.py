"""What has to be done to a program for rounds of loops to look alike, and to be small.

`even_out`: each round reads its slices itself. `hoist`: products of slices by what is the same for all are one product
before the loop.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram
from argand.passes.cse import eliminate_common_subexpressions
from argand.passes.rolling.windows import Loop, is_slice

aten = torch.ops.aten


def even_out(program: AtenProgram) -> None:
    """What all rounds compute is computed once, and slices are read just before each node that uses them."""
    eliminate_dead(program.graph)
    eliminate_common_subexpressions(program)
    builder = _builder(program)
    for node in list(program.graph.nodes):
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
    """The call that reads a slice: of `unbind` and `split`, whose results are views too, those of a number."""
    if is_slice(node):
        source: Any = node.args[0]
        dim, begin, *end = (int(arg) for arg in node.args[1:])
        dim, size = dim % source.meta["val"].ndim, source.meta["val"].shape
        if node.target is aten.select.int:
            return (aten.select.int, source, dim, begin % size[dim])
        return (aten.slice.Tensor, source, dim, begin, *end) if 0 <= begin < end[0] <= size[dim] else None
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return None
    several, number = node.args[0], int(node.args[1])
    if several.target is aten.unbind.int:
        source, dim = several.args[0], several.args[1] if len(several.args) > 1 else 0
        return (aten.select.int, source, int(dim) % source.meta["val"].ndim, number)
    return None


def hoist(program: AtenProgram, loop: Loop) -> bool:
    """Whether products of slices by what is outside of a loop were put before it."""
    nodes = loop.rounds[1]
    place = {node: offset for offset, node in enumerate(nodes)}
    inside = {node for each in loop.rounds for node in each}
    ahead: set[int] = set()
    for offset, node in enumerate(nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, left, right = node.args
        over = loop.over.get(place.get(left, -1))
        if over is None or over.size is not None or over.step == 0:
            continue
        if right not in inside and all(each not in inside and each.meta["val"].ndim == 1 for each in bias):
            ahead.add(offset)
    for offset in ahead:
        _hoist_product(program, loop, offset, loop.over[place[nodes[offset].args[-2]]])
    return bool(ahead)


def _hoist_product(program: AtenProgram, loop: Loop, offset: int, over: Any) -> None:
    count = len(loop.rounds)
    nodes = [each[offset] for each in loop.rounds]
    last = over.first + (count - 1) * over.step
    low, high = min(over.first, last), max(over.first, last) + 1
    *bias, _, right = nodes[1].args
    builder = _builder(program)
    source = over.source
    with builder.at(loop.rounds[0][0]):
        rows = source
        if (low, high, abs(over.step)) != (0, source.meta["val"].shape[over.dim], 1):
            rows = builder(aten.slice.Tensor, rows, over.dim, low, high, abs(over.step))
        if over.dim != 0 or not _flattens(rows):  # each round's part of the result is to be contiguous, as it was
            rows = builder(aten.permute.default, rows, [over.dim, *(d for d in range(3) if d != over.dim)])
            rows = builder(aten.clone.default, rows, memory_format=torch.contiguous_format)
        size = rows.meta["val"].shape
        flat = builder(aten.view.default, rows, [size[0] * size[1], size[2]])
        product = builder(nodes[1].target, *bias, flat, right)
        products = builder(aten.view.default, product, [size[0], size[1], nodes[1].meta["val"].shape[1]])
    for number, node in enumerate(nodes):
        position = number if over.step > 0 else count - 1 - number
        with builder.at(node):
            own = builder(aten.select.int, products, 0, position)
        node.replace_all_uses_with(own)
        program.graph.erase_node(node)


def _flattens(rows: fx.Node) -> bool:
    """Whether the first two dimensions are one in memory."""
    val: Any = rows.meta["val"]
    return bool(val.stride(0) == val.shape[1] * val.stride(1) and prod(val.shape[:2]) > 0)


def _builder(program: AtenProgram) -> Builder:
    if program.specs is None:
        program.specs = SpecTable()
    return Builder(program.graph, program.specs, made_by="roll")


def _layout(node: fx.Node) -> tuple[Sequence[int], Sequence[int], torch.dtype]:
    val: Any = node.meta["val"]
    return tuple(val.shape), tuple(val.stride()), val.dtype
