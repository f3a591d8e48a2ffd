"""Products that need not be in a loop: one large product before or after it is faster than one a round."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.nodes.program import AtenProgram
from argand.passes.rolling.results import builder_of, replace_results
from argand.passes.rolling.slices import move_slices
from argand.passes.rolling.windows import Loop, Over

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)


def move_products(program: AtenProgram, loop: Loop) -> bool:
    """Whether products were taken out of a loop."""
    moved = _hoist(program, loop) or _accumulate(program, loop) or _sink(program, loop)
    if moved:
        move_slices(program)
    return moved


# ----------------------------------------------------------------------- before the loop


def _hoist(program: AtenProgram, loop: Loop) -> bool:
    """Products of slices by what is outside."""
    nodes = loop.rounds[1]
    place = {node: offset for offset, node in enumerate(nodes)}
    inside = loop.nodes
    ahead: set[int] = set()
    for offset, node in enumerate(nodes):
        if node.target not in _PRODUCTS or node.kwargs:
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


def _hoist_product(program: AtenProgram, loop: Loop, offset: int, over: Over) -> None:
    nodes = [each[offset] for each in loop.rounds]
    count = len(nodes)
    *bias, _, right = nodes[1].args
    builder = builder_of(program)
    with builder.at(loop.rounds[0][0]):
        rows = _slices(builder, over, count)  # each round's part of the result is to be contiguous, as it was
        size = rows.meta["val"].shape
        flat = builder(aten.view.default, rows, [size[0] * size[1], size[2]])
        product = builder(nodes[1].target, *bias, flat, right)
        products = builder(aten.view.default, product, [size[0], size[1], nodes[1].meta["val"].shape[1]])
    whose = {node: (number, offset) for number, node in enumerate(nodes)}
    replace_results(
        program, whose, {offset: products}, lambda _, number: number if over.step > 0 else count - 1 - number
    )
    for node in nodes:
        program.graph.erase_node(node)


def _flattens(rows: fx.Node) -> bool:
    """Whether the first two dimensions are one in memory."""
    val: Any = rows.meta["val"]
    return val.ndim > 1 and bool(val.stride(0) == val.shape[1] * val.stride(1) and prod(val.shape[:2]) > 0)


# ----------------------------------------------------------------------- after it


def _accumulate(program: AtenProgram, loop: Loop) -> bool:
    """Sums of products, one more each round (gradients of weights): one product of what all rounds multiply."""
    changed = False
    for offset, first in loop.carried.items():
        sums = [each[offset] for each in loop.rounds]
        terms = _terms(loop, sums, first)
        if terms is None:
            continue
        builder = builder_of(program)
        with builder.at(loop.rounds[-1][-1].next):
            left = _rows_of_left(builder, loop, [term.args[0] for term in terms])
            right = _sequence(builder, loop, [term.args[1] for term in terms])
            if left is None or right is None:
                continue
            size = right.meta["val"].shape
            right = builder(aten.view.default, right, [size[0] * size[1], size[2]])
            total = builder(aten.add.Tensor, first, builder(aten.mm.default, left, right))
        sums[-1].replace_all_uses_with(total)
        for node in (*reversed(sums), *terms):
            program.graph.erase_node(node)
        changed = True
    return changed


def _terms(loop: Loop, sums: Sequence[fx.Node], first: fx.Node) -> list[fx.Node] | None:
    """What is added each round, where that is a product which nobody else reads, and only the last sum is read."""
    terms: list[fx.Node] = []
    for number, node in enumerate(sums):
        before = sums[number - 1] if number else first
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2 or before not in node.args:
            return None
        term: Any = node.args[1] if node.args[0] is before else node.args[0]
        if not isinstance(term, fx.Node) or term.target is not aten.mm.default or list(term.users) != [node]:
            return None
        if any(one.meta["val"].shape != node.meta["val"].shape for one in (term, before)):
            return None
        if any(one.meta["val"].dtype is not node.meta["val"].dtype for one in (term, before)):
            return None
        if number + 1 < len(sums) and list(node.users) != [sums[number + 1]]:
            return None
        terms.append(term)
    inside = loop.nodes
    return terms if inside.issuperset(terms) else None


def _rows_of_left(builder: Builder, loop: Loop, nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The left sides (m, k) of all rounds beside each other."""
    transposed = all(node.target is aten.t.default for node in nodes)
    rows = _sequence(builder, loop, [node.args[0] for node in nodes] if transposed else nodes)
    if rows is None:
        return None
    size = rows.meta["val"].shape
    result: fx.Node
    if transposed:
        result = builder(aten.t.default, builder(aten.view.default, rows, [size[0] * size[1], size[2]]))
        return result
    beside = builder(aten.permute.default, rows, [1, 0, 2])
    beside = builder(aten.clone.default, beside, memory_format=torch.contiguous_format)
    result = builder(aten.view.default, beside, [size[1], size[0] * size[2]])
    return result


def _sequence(builder: Builder, loop: Loop, nodes: Sequence[Any]) -> fx.Node | None:
    """Matrices of all rounds, contiguous, one after the other."""
    offsets = {node: offset for offset, node in enumerate(loop.rounds[0])}
    over = loop.over.get(offsets.get(nodes[0], -1))
    if over is not None and over.size is None and all(n is r[offsets[nodes[0]]] for n, r in zip(nodes, loop.rounds)):
        rows = _slices(builder, over, len(nodes))
        if over.step < 0:
            rows = builder(aten.flip.default, rows, [0])
        return rows if over.step else None
    inside = loop.nodes
    if not all(node in inside for node in nodes[1:]):
        return None
    stacked: fx.Node = builder(aten.stack.default, list(nodes))
    return stacked


def _slices(builder: Builder, over: Over, count: int) -> fx.Node:
    """What `count` rounds read, contiguous, in ascending order."""
    last = over.first + (count - 1) * over.step
    low, high = min(over.first, last), max(over.first, last) + 1
    rows, size = over.source, over.source.meta["val"].shape
    if (low, high, abs(over.step)) != (0, size[over.dim], 1):
        rows = builder(aten.slice.Tensor, rows, over.dim, low, high, abs(over.step))
    if over.dim != 0 or not _flattens(rows):
        rows = builder(aten.permute.default, rows, [over.dim, *(d for d in range(len(size)) if d != over.dim)])
        rows = builder(aten.clone.default, rows, memory_format=torch.contiguous_format)
    return rows


def _sink(program: AtenProgram, loop: Loop) -> bool:
    """Products by what is outside which no round reads."""
    inside = {node: number for number, each in enumerate(loop.rounds) for node in each}
    for offset in loop.seen:
        nodes = [each[offset] for each in loop.rounds]
        node = nodes[1]
        if node.target not in _PRODUCTS or node.kwargs or offset in loop.carried or loop.seen[offset]:
            continue
        *bias, left, right = node.args
        if left not in inside or any(each in inside for each in (right, *bias)):
            continue
        if any(each.meta["val"].ndim != 1 for each in bias) or any(u in inside for n in nodes for u in n.users):
            continue
        builder = builder_of(program)
        with builder.at(loop.rounds[-1][-1].next):
            rows = _sequence(builder, loop, [each.args[-2] for each in nodes])
            if rows is None:
                continue
            size = rows.meta["val"].shape
            flat = builder(aten.view.default, rows, [size[0] * size[1], size[2]])
            product = builder(node.target, *bias, flat, right)
            products = builder(aten.view.default, product, [size[0], size[1], node.meta["val"].shape[1]])
        whose = {each: (number, offset) for number, each in enumerate(nodes)}
        replace_results(program, whose, {offset: products}, lambda _, number: number)
        for each in nodes:
            program.graph.erase_node(each)
        return True
    return False
