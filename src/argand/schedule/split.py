"""Splits reductions that few programs of a device would compute, each for long, into two loop nodes, and on a CPU large
ones of columns, so that kernels that go through the same rows compute them on the way.

The first reduces chunks, by as many programs as the device runs at once, into a temporary buffer; the second reduces
what the chunks gave, and does the rest of the node. Where chunks do not divide the loop evenly, elements past its end
are masked with the reduction's identity.

Of a position (argmax) each chunk gives its extremum and where it is; a node between the two finds the extremum of all,
and the second node the least position of those that have it: the first one, as the chunks are in order and masked
elements come last. A chunk with NaN has it for its extremum, so that NaN wins here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import torch

from argand.graph.sizes.expr import ONE, ZERO, Const, Expr, Var, as_int, coefficient, product, substitute, sum_of
from argand.ir.loops import (
    CHECKS,
    Buffer,
    LoopBlock,
    LoopBody,
    LoopNode,
    Node,
    Program,
    Value,
    expressions,
    identity,
    statements_of,
)
from argand.quick_dataclasses import dataclass
from argand.schedule.access import accesses, device_of, hint, hint_bytes, hint_numel, operands
from argand.schedule.copier import Copier

if TYPE_CHECKING:
    from argand.ir.target import Target

# A chunk is at least this part of what is too long: shorter ones cost more in the second kernel than they save.
_LEAST_PART = 8
_COLUMN_PROGRAMS = 2
_LEAST_ROWS = 12  # of a chunk: the second kernel reads one row for each
SHORT_ROWS = 128  # of a chunk, at most: through so many, loops over columns go row by row
POSITIONS = {"argmax": "max", "argmin": "min"}
KINDS = ("sum", "prod", "max", "min", "any", *POSITIONS)


def split_reductions(program: Program, targets: Mapping[torch.device, Target]) -> Program:
    """`program` with its long reductions in two nodes each, on devices whose target wants that."""
    if not any(target.split_reduction or target.column_bytes for target in targets.values()):
        return program
    buffers = dict(program.buffers)
    nodes: list[Node] = []
    for node in program.nodes:
        if not isinstance(node, LoopNode):
            nodes.append(node)
            continue
        chunks = _chunks(node, program.buffers, targets)
        nodes += [node] if chunks is None else _in_two(node, chunks, buffers)
    return replace(program, nodes=nodes, buffers=buffers)


@dataclass(slots=True)
class _Chunks:
    """How the reduction loops are cut.

    Arguments:
        loops: of the chunks: the first node's outermost loops, and the second one's reduction loops.
        left: reduction loops inside a chunk.
        index: old reduction variable -> position in terms of both.
        bound: (position, size) where the last chunks may reach past the end.
    """

    loops: list[tuple[Var, Expr]] = field(default_factory=list)
    left: list[tuple[Var, Expr]] = field(default_factory=list)
    index: dict[Var, Expr] = field(default_factory=dict)
    bound: tuple[Expr, Expr] | None = None


def _chunks(node: LoopNode, buffers: Mapping[str, Buffer], targets: Mapping[torch.device, Target]) -> _Chunks | None:
    """How to cut the reduction loops of a node; None where it stays as it is."""
    body = node.body
    if not body.reduction_vars or node.mutates:
        return None
    target = targets.get(device_of(accesses(node), buffers, node.name))
    if target is None or not (target.split_reduction or target.column_bytes) or not _can_split(body):
        return None
    wanted = _wanted(body, buffers, target) if target.split_reduction else _of_columns(body, buffers, target)
    return _cut(body, wanted) if wanted > 1 else None


def _wanted(body: LoopBody, buffers: Mapping[str, Buffer], target: Target) -> int:
    """How many chunks a node should have; 1 leaves it alone."""
    points = hint(product(body.sizes))
    along = _along_points(body, buffers)
    programs = -(-points // target.columns) if along else points
    if not 0 < programs < target.threads:
        return 1
    wanted = _COLUMN_PROGRAMS * target.threads if along else target.threads  # those of columns are small
    work = points * hint(product(body.reduction_sizes)) // programs
    if work <= target.split_reduction:
        return 1
    return min(-(-wanted // programs), -(-work * _LEAST_PART // target.split_reduction))


def _of_columns(body: LoopBody, buffers: Mapping[str, Buffer], target: Target) -> int:
    """How many chunks of rows a reduction of columns should have: each stays in a cache."""
    rows = as_int(product(body.reduction_sizes))
    statements = statements_of(body)
    if rows is None or as_int(product(body.sizes)) is None or not _along_points(body, buffers):
        return 1
    if any(statement.op == "reduction" and statement.args[0] in POSITIONS for statement in statements):
        return 1
    names = {statement.args[0] for statement in statements if statement.op == "load"}
    wanted = max(hint_bytes(buffers[name]) for name in names) // target.column_bytes
    if not max(_LEAST_PART, target.threads) <= wanted <= rows // _LEAST_ROWS:
        return 1
    return max(wanted, -(-rows // SHORT_ROWS))


def _along_points(body: LoopBody, buffers: Mapping[str, Buffer]) -> bool:
    """Whether memory is contiguous along a loop that is not reduced: one program computes several such points then."""
    votes = {False: 0, True: 0}
    for statement in statements_of(body):
        if statement.op == "load":
            name, index = statement.args[:2]
            for reduced, loops in ((False, body.vars), (True, body.reduction_vars)):
                if any(coefficient(index, var) is ONE for var in loops):
                    votes[reduced] += hint_numel(buffers[name])
    return votes[False] > votes[True]


def _cut(body: LoopBody, wanted: int) -> _Chunks:
    cut = _Chunks()
    rest = list(zip(body.reduction_vars, body.reduction_sizes))
    while rest and wanted > 1:
        var, size = rest[0]
        chunk = Var(f"c{len(cut.loops)}")
        typical = hint(size)
        if typical <= wanted and len(rest) > 1:
            cut.loops.append((chunk, size))
            cut.index[var] = chunk
            wanted = -(-wanted // max(typical, 1))
            rest.pop(0)
            continue
        count, length = _count_and_length(size, min(wanted, typical))
        cut.loops.append((chunk, Const(count)))
        cut.index[var] = chunk * length + var
        if length * count != size:
            cut.bound = (cut.index[var], size)
        rest[0] = (var, length)
        break
    cut.left = rest
    return cut


def _count_and_length(size: Expr, wanted: int) -> tuple[int, Expr]:
    """How many chunks a loop has, about `wanted`, and how long they are: without a remainder where that can be."""
    number = as_int(size)
    if number is None:
        return wanted, (size + (wanted - 1)) // wanted
    nearby = [*range(wanted, 2 * wanted), *range(wanted - 1, wanted // 2, -1)]
    count = next((count for count in nearby if number % count == 0), 0)
    if not count:
        count = -(-number // -(-number // wanted))
    return count, Const(-(-number // count))


def _inside(body: LoopBody) -> set[int]:
    """Statements that run in the reduction loops."""
    reduced = set(body.reduction_vars)
    inside: set[int] = set()
    for statement in body.statements:
        if statement.op == "reduction":
            continue
        free = any(not reduced.isdisjoint(index.free) for index in expressions(statement))
        if free or not inside.isdisjoint(operands(statement)):
            inside.add(statement.id)
    return inside


def _can_split(body: LoopBody) -> bool:
    """Whether all that happens inside the reduction loops are the values that known kinds of reduction take."""
    inside = _inside(body)
    after: set[int] = set()
    for statement in body.statements:
        used = operands(statement)
        if not after.isdisjoint(used):
            if statement.id in inside or statement.op == "reduction":
                return False
            after.add(statement.id)
        elif statement.op == "reduction":
            after.add(statement.id)
    needed: set[int] = set()
    for statement in reversed(body.statements):
        if statement.op == "reduction":
            kind, value = statement.args
            if kind not in KINDS or (kind in POSITIONS and value.dtype in (torch.float16, torch.bfloat16)):
                return False
            needed.add(value.id)
        elif statement.id in inside:
            if statement.op == "store" or (statement.op in CHECKS and statement.id not in needed):
                return False
            if statement.id in needed:
                needed.update(operands(statement))
    return True


@dataclass(slots=True)
class _Parts:
    """What one reduction hands from node to node.

    Arguments:
        reduction: of the old body.
        part: its result for each chunk.
        extremum: of a position: that of each chunk.
        best: of a position: that of all.
    """

    reduction: Value
    part: Buffer
    extremum: Buffer | None = None
    best: Buffer | None = None


def _parts(node: LoopNode, chunks: _Chunks, device: torch.device) -> list[_Parts]:
    points = node.body.sizes
    size = (*(count for _, count in chunks.loops), *points)
    of_reductions = []
    for number, reduction in enumerate(s for s in node.body.statements if s.op == "reduction"):
        name = f"{node.outputs[0]}_part{number}"
        parts = _Parts(reduction, _contiguous(name, reduction.dtype, device, size))
        if reduction.args[0] in POSITIONS:
            dtype = reduction.args[1].dtype
            parts.extremum = _contiguous(f"{name}_extremum", dtype, device, size)
            parts.best = _contiguous(f"{name}_best", dtype, device, points)
        of_reductions.append(parts)
    return of_reductions


def _contiguous(name: str, dtype: torch.dtype, device: torch.device, size: tuple[Expr, ...]) -> Buffer:
    return Buffer(name, dtype, device, size, tuple(product(size[place + 1 :]) for place in range(len(size))))


def _place(buffer: Buffer, loops: Iterable[Var]) -> Expr:
    return sum_of([var * step for var, step in zip(loops, buffer.stride, strict=True)])


def _in_two(node: LoopNode, chunks: _Chunks, buffers: dict[str, Buffer]) -> list[Node]:
    parts = _parts(node, chunks, buffers[node.outputs[0]].device)
    nodes: list[Node] = []
    firsts = [each for one in parts for each in (one.part, one.extremum) if each is not None]
    bests = [one.best for one in parts if one.best is not None]
    buffers.update({buffer.name: buffer for buffer in (*firsts, *bests)})
    first = _first(node.body, chunks, parts)
    nodes.append(LoopNode(f"{node.name}_chunks", first, tuple(buffer.name for buffer in firsts), node.origins))
    if bests:
        between = _extrema(node.body, chunks, parts)
        nodes.append(LoopNode(f"{node.name}_extrema", between, tuple(buffer.name for buffer in bests), node.origins))
    return [*nodes, LoopNode(node.name, _second(node.body, chunks, parts), node.outputs, node.origins)]


def _first(body: LoopBody, chunks: _Chunks, parts: Sequence[_Parts]) -> LoopBody:
    """The node that reduces chunks."""
    inside = _inside(body)
    copier = Copier(dict(chunks.index))
    users = [s for s in body.statements if s.id in inside or s.op == "reduction"]
    copier.copy(_needed(users, body.statements, inside), copier.statements)
    taken = [_taken(body, chunks, one.reduction, inside, copier) for one in parts]
    loops = [*chunks.loops, *zip(body.vars, body.sizes)]
    index = _place(parts[0].part, [var for var, _ in loops])
    for one, value in zip(parts, taken):
        kind, like = one.reduction.args[0], one.reduction
        result = copier.add("reduction", (kind, value), like, like.dtype)
        if one.extremum is not None:
            start = copier.add("index_expr", (_start(body, chunks), torch.int64), like, torch.int64)
            result = copier.add("add", (start, result), like, torch.int64)
            extremum = copier.add("reduction", (POSITIONS[kind], value), like, value.dtype)
            copier.add("store", (one.extremum.name, index, extremum, None), like, value.dtype)
        copier.add("store", (one.part.name, index, result, None), like, result.dtype)
    return _body(loops, chunks.left, copier.statements)


def _taken(body: LoopBody, chunks: _Chunks, reduction: Value, inside: set[int], copier: Copier) -> Value:
    """What a reduction takes, in the node that reduces chunks."""
    kind, value = reduction.args
    source = _needed([reduction], [s for s in body.statements if s.id in inside], set())
    if chunks.bound is None:
        copier.copy([s for s in source if s.id not in copier.known], copier.statements)
        return copier.known[value.id]
    position, size = (copier.add("index_expr", (e, torch.int64), reduction, torch.int64) for e in chunks.bound)
    mask = copier.add("lt", (position, size), reduction, torch.bool)
    inner: list[Value] = []
    copier.copy(source, inner)
    args = (mask, LoopBlock(inner, copier.known[value.id]), identity(POSITIONS.get(kind, kind), value.dtype))
    return copier.add("masked", args, reduction, value.dtype)


def _start(body: LoopBody, chunks: _Chunks) -> Expr:
    """The position of a chunk's first element among all that are reduced."""
    sizes = body.reduction_sizes
    first = {var: ZERO for var, _ in chunks.left}
    where = [substitute(chunks.index.get(var, var), first) for var in body.reduction_vars]
    return sum_of([at * product(sizes[place + 1 :]) for place, at in enumerate(where)])


def _extrema(body: LoopBody, chunks: _Chunks, parts: Sequence[_Parts]) -> LoopBody:
    """The node that finds the extrema of all chunks."""
    copier = Copier({})
    for one in parts:
        if one.extremum is None or one.best is None:
            continue
        like, dtype = one.reduction, one.best.dtype
        index = _place(one.extremum, (*(var for var, _ in chunks.loops), *body.vars))
        loaded = copier.add("load", (one.extremum.name, index), like, dtype)
        best = copier.add("reduction", (POSITIONS[like.args[0]], loaded), like, dtype)
        copier.add("store", (one.best.name, _place(one.best, body.vars), best, None), like, dtype)
    return _body(list(zip(body.vars, body.sizes)), chunks.loops, copier.statements)


def _second(body: LoopBody, chunks: _Chunks, parts: Sequence[_Parts]) -> LoopBody:
    """The node that reduces what the chunks gave, and does what followed the reductions."""
    inside = _inside(body)
    parts_of = {one.reduction.id: one for one in parts}
    index = _place(parts[0].part, (*(var for var, _ in chunks.loops), *body.vars))
    copier = Copier({})
    for statement in body.statements:
        if statement.id in inside:
            continue
        if statement.op != "reduction":
            copier.copy([statement], copier.statements)
            continue
        one, kind = parts_of[statement.id], statement.args[0]
        loaded = copier.add("load", (one.part.name, index), statement, statement.dtype)
        if one.extremum is not None and one.best is not None:
            kind, loaded = "min", _with_best(copier, one.extremum, one.best, index, _place(one.best, body.vars), loaded)
        copier.known[statement.id] = copier.add("reduction", (kind, loaded), statement, statement.dtype)
    return _body(list(zip(body.vars, body.sizes)), chunks.loops, copier.statements)


def _with_best(copier: Copier, extremum: Buffer, best: Buffer, index: Expr, place: Expr, position: Value) -> Value:
    """A chunk's position where the chunk has the extremum of all, else the greatest number."""
    dtype = best.dtype
    here = copier.add("load", (extremum.name, index), position, dtype)
    wanted = copier.add("load", (best.name, place), position, dtype)
    has = copier.add("eq", (here, wanted), position, torch.bool)
    if dtype.is_floating_point:
        nan = copier.add("isnan", (here,), position, torch.bool)
        has = copier.add("logical_or", (has, nan), position, torch.bool)
    last = copier.add("constant", (torch.iinfo(torch.int64).max, torch.int64), position, torch.int64)
    return copier.add("where", (has, position, last), position, torch.int64)


def _body(loops: Sequence[tuple[Var, Expr]], reduced: Sequence[tuple[Var, Expr]], statements: list[Value]) -> LoopBody:
    return LoopBody(
        tuple(var for var, _ in loops),
        tuple(size for _, size in loops),
        tuple(var for var, _ in reduced),
        tuple(size for _, size in reduced),
        statements,
    )


def _needed(users: Sequence[Value], among: Sequence[Value], without: set[int]) -> list[Value]:
    """The statements of `among` that `users` need, directly or not, in order."""
    needed = {each for user in users for each in operands(user)}
    in_reverse = []
    for statement in reversed(among):
        if statement.id in needed and statement.id not in without:
            in_reverse.append(statement)
            needed |= operands(statement)
    return in_reverse[::-1]
