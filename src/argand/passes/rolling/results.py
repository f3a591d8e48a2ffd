"""Results of all rounds that lie in one tensor each, in place of the nodes that were read after a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.cse import returned_storages
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

Whose = Mapping[fx.Node, tuple[int, int]]
Row = Callable[[int, int], int]


def builder_of(program: AtenProgram) -> Builder:
    """What adds to a program."""
    if program.specs is None:
        program.specs = SpecTable()
    return Builder(program.graph, program.specs, made_by="roll")


def layout_of(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and strides of a node's result."""
    val: Any = node.meta["val"]
    return tuple(val.shape), tuple(val.stride())


def replace_results(program: AtenProgram, whose: Whose, result_of: Mapping[int, Any], row: Row) -> None:
    """Let what is outside of a loop read its results.

    Arguments:
        whose: number of the round and place of the loop's nodes.
        result_of: by place, the tensor of all rounds' results.
        row: where in that tensor the result of a place and a round is.
    """
    builder = builder_of(program)
    returned = returned_storages(program.graph)
    for user in _outside_users(whose, result_of):
        if user.target in (aten.cat.default, aten.stack.default):
            shared = user not in returned or _is_kept(program, user)
            _Join(builder, user, whose, result_of, row, shared).replace()
    places = {node: place for place, node in enumerate(program.graph.nodes)}
    after = max(result_of.values(), key=places.__getitem__)
    for node, (number, offset) in whose.items():
        if offset in result_of and any(user not in whose for user in node.users):
            with builder.at(after.next):
                picked = builder(aten.select.int, result_of[offset], 0, row(offset, number))
            node.replace_all_uses_with(picked, delete_user_cb=lambda user: user not in whose)


def _outside_users(whose: Whose, result_of: Mapping[int, Any]) -> list[fx.Node]:
    """What joins results of rounds, as they are or with a dimension more."""
    users: dict[fx.Node, None] = {}
    for node, (_, offset) in whose.items():
        for user in node.users if offset in result_of else ():
            if user not in whose:
                users[user] = None
                users.update(dict.fromkeys(user.users if user.target is aten.unsqueeze.default else ()))
    return [node for node in users if node.op == "call_function"]


def _is_kept(program: AtenProgram, node: fx.Node) -> bool:
    """Whether only the backward sees a result: it may share memory with others."""
    if any(user.op != "output" for user in node.users):
        return False
    outputs: Any = program.output_node.args[0]
    return all(position in program.kept for position, each in enumerate(outputs) if each is node)


@dataclass(slots=True)
class _Join:
    """A `cat` or `stack`, of which results of consecutive rounds are read where they lie.

    Arguments:
        shared: the result may share memory with others.
    """

    builder: Builder
    user: fx.Node
    whose: Whose
    result_of: Mapping[int, Any]
    row: Row
    shared: bool

    def replace(self) -> None:
        builder, user = self.builder, self.user
        parts: Any = user.args[0]
        rank = len(user.meta["val"].shape)
        dim = int(user.args[1]) % rank if len(user.args) > 1 else 0
        stacked = user.target is aten.stack.default
        sources = [_Part(part, False) if stacked else _part(part, dim, rank, self.whose) for part in parts]
        places = [self.whose.get(source.node) if source is not None else None for source in sources]
        pieces: list[Any] = []
        number = 0
        with builder.at(user):
            while number < len(parts):
                source, first = sources[number], places[number]
                if source is None or first is None or first[1] not in self.result_of:
                    pieces.append(builder(aten.unsqueeze.default, parts[number], dim) if stacked else parts[number])
                    number += 1
                    continue
                end, way = _run(places, number)
                pieces.append(self._rows(first, end - number, way, source, dim, rank))
                number = end
            if len(pieces) == 1:
                (joined,) = pieces
                if not self.shared or layout_of(joined) != layout_of(user):
                    joined = builder(aten.clone.default, joined, memory_format=torch.contiguous_format)
            else:
                joined = builder(aten.cat.default, pieces, dim)
        if len(pieces) == len(parts) or layout_of(joined) != layout_of(user):
            return
        user.replace_all_uses_with(joined)
        builder.graph.erase_node(user)
        for part in dict.fromkeys(parts):
            if part.target is aten.unsqueeze.default and not part.users and part not in self.whose:
                builder.graph.erase_node(part)

    def _rows(self, first: tuple[int, int], count: int, way: int, source: _Part, dim: int, rank: int) -> fx.Node:
        """The results of rounds `first`, `first + way`, ... along a dimension."""
        builder, (number, offset) = self.builder, first
        ends = self.row(offset, number), self.row(offset, number + (count - 1) * way)
        begin, way = min(ends), 1 if ends[0] <= ends[1] else -1
        rows = builder(aten.slice.Tensor, self.result_of[offset], 0, begin, begin + count)
        rows = builder(aten.flip.default, rows, [0]) if way < 0 else rows
        rows = builder(aten.squeeze.dim, rows, dim + 1) if source.has_dimension else rows
        if dim == 0:
            return rows
        permuted: fx.Node = builder(aten.permute.default, rows, [*range(1, dim + 1), 0, *range(dim + 1, rank)])
        return permuted


def _run(places: list[tuple[int, int] | None], number: int) -> tuple[int, int]:
    """How far from `number` on places are those of one after the other, and whether upwards (1) or downwards (-1)."""
    first, end = places[number], number + 1
    assert first is not None  # the caller has checked
    way = -1 if end < len(places) and places[end] == (first[0] - 1, first[1]) else 1
    while end < len(places) and places[end] == (first[0] + (end - number) * way, first[1]):
        end += 1
    return end, way


@dataclass(frozen=True, slots=True)
class _Part:
    """A result that is joined with others; `has_dimension`: with the one of one element along which that is done."""

    node: fx.Node
    has_dimension: bool


def _part(part: fx.Node, dim: int, rank: int, whose: Whose) -> _Part | None:
    """What a part of a `cat` is; None where it is none of one element along `dim`."""
    if part in whose:
        return _Part(part, True) if part.meta["val"].shape[dim] == 1 else None
    if part.target is not aten.unsqueeze.default or int(part.args[1]) % rank != dim:
        return None
    return _Part(part.args[0], False)
