"""Splits reductions that few programs of a device would compute, each for long, into two loop nodes.

The first reduces chunks, by as many programs as the device runs at once, into a temporary buffer; the second reduces
what the chunks gave, and does the rest of the node. Where chunks do not divide the loop evenly, elements past its end
are masked with the reduction's identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from argand.graph.expr import ONE, Const, Expr, Var, as_int, coefficient, product, substitute, sum_of
from argand.ir.loops import Buffer, LoopBlock, LoopBody, LoopNode, Node, Program, Value, statements_of
from argand.schedule.access import accesses, device_of, expressions, hint, hint_numel, operands

if TYPE_CHECKING:
    from argand.ir.target import Target

# A chunk is at least this part of what is too long: shorter ones cost more in the second kernel than they save.
_LEAST_PART = 8
KINDS = ("sum", "prod", "max", "min", "any")  # positions (argmax) are left alone


def split_reductions(program: Program, targets: Mapping[torch.device, Target]) -> Program:
    """`program` with its long reductions in two nodes each, on devices whose target wants that."""
    if not any(target.split_reduction for target in targets.values()):
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
    if target is None or not target.split_reduction or not _can_split(body):
        return None
    wanted = _wanted(body, buffers, target)
    return _cut(body, wanted) if wanted > 1 else None


def _wanted(body: LoopBody, buffers: Mapping[str, Buffer], target: Target) -> int:
    """How many chunks a node should have; 1 leaves it alone."""
    points = hint(product(body.sizes))
    programs = -(-points // target.vector_run) if _along_points(body, buffers) else points
    if not 0 < programs < target.threads:
        return 1
    work = points * hint(product(body.reduction_sizes)) // programs
    if work <= target.split_reduction:
        return 1
    return min(-(-target.threads // programs), -(-work * _LEAST_PART // target.split_reduction))


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
    made = _Chunks()
    rest = list(zip(body.reduction_vars, body.reduction_sizes))
    while rest and wanted > 1:
        var, size = rest[0]
        chunk = Var(f"c{len(made.loops)}")
        typical = hint(size)
        if typical <= wanted and len(rest) > 1:
            made.loops.append((chunk, size))
            made.index[var] = chunk
            wanted = -(-wanted // max(typical, 1))
            rest.pop(0)
            continue
        count, length = _count_and_length(size, min(wanted, typical))
        made.loops.append((chunk, Const(count)))
        made.index[var] = chunk * length + var
        if length * count != size:
            made.bound = (made.index[var], size)
        rest[0] = (var, length)
        break
    made.left = rest
    return made


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
            if kind not in KINDS:
                return False
            needed.add(value.id)
        elif statement.id in inside:
            if statement.op == "store" or (statement.op == "indirect" and statement.id not in needed):
                return False
            if statement.id in needed:
                needed.update(operands(statement))
    return True


@dataclass(slots=True)
class _Copier:
    """Copies statements into a new body.

    Arguments:
        index: what takes the place of loop variables.
        known: old id -> copy.
    """

    index: dict[Var, Expr]
    statements: list[Value] = field(default_factory=list)
    known: dict[int, Value] = field(default_factory=dict)
    count: int = 0

    def append(self, into: list[Value], op: str, args: tuple[Any, ...], like: Value, dtype: torch.dtype) -> Value:
        made = Value(self.count, op, args, dtype, like.origin)
        self.count += 1
        into.append(made)
        return made

    def copy(self, source: Iterable[Value], into: list[Value]) -> None:
        for old in source:
            made = self.append(into, old.op, tuple(map(self._arg, old.args)), old, old.dtype)
            self.known[old.id] = made
            if old.op == "indirect":
                self.index[Var(f"i{old.id}")] = Var(f"i{made.id}")

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.known[arg.id]
        if isinstance(arg, Expr):
            return substitute(arg, self.index)
        if isinstance(arg, LoopBlock):
            inner: list[Value] = []
            self.copy(arg.statements, inner)
            return LoopBlock(inner, self.known[arg.result.id])
        if isinstance(arg, (tuple, list)):
            return tuple(map(self._arg, arg))
        return arg


def _in_two(node: LoopNode, chunks: _Chunks, buffers: dict[str, Buffer]) -> list[Node]:
    body = node.body
    reductions = [statement for statement in body.statements if statement.op == "reduction"]
    device = buffers[node.outputs[0]].device
    size = (*(count for _, count in chunks.loops), *body.sizes)
    stride = tuple(product(size[place + 1 :]) for place in range(len(size)))
    parts = [
        Buffer(f"{node.outputs[0]}_part{number}", reduction.dtype, device, size, stride)
        for number, reduction in enumerate(reductions)
    ]
    buffers.update({part.name: part for part in parts})
    place = sum_of([var * step for var, step in zip((*(var for var, _ in chunks.loops), *body.vars), stride)])
    first = _first(body, chunks, reductions, parts, place)
    second = _second(body, chunks, reductions, parts, place)
    names = tuple(part.name for part in parts)
    return [
        LoopNode(f"{node.name}_chunks", first, names, node.origins),
        LoopNode(node.name, second, node.outputs, node.origins),
    ]


def _first(
    body: LoopBody, chunks: _Chunks, reductions: Sequence[Value], parts: Sequence[Buffer], place: Expr
) -> LoopBody:
    """The node that reduces chunks."""
    inside = _inside(body)
    copier = _Copier(dict(chunks.index))
    users = [s for s in body.statements if s.id in inside or s.op == "reduction"]
    outside = _needed(users, body.statements, inside)
    copier.copy(outside, copier.statements)
    values = []
    for reduction in reductions:
        kind, value = reduction.args
        source = _needed([reduction], [s for s in body.statements if s.id in inside], set())
        if chunks.bound is None:
            copier.copy([s for s in source if s.id not in copier.known], copier.statements)
            values.append((reduction, copier.known[value.id]))
            continue
        mask = _within(copier, chunks.bound, reduction)
        inner: list[Value] = []
        copier.copy(source, inner)
        block = LoopBlock(inner, copier.known[value.id])
        args = (mask, block, identity(kind, value.dtype))
        values.append((reduction, copier.append(copier.statements, "masked", args, reduction, value.dtype)))
    for (reduction, taken), part in zip(values, parts):
        kind = reduction.args[0]
        made = copier.append(copier.statements, "reduction", (kind, taken), reduction, reduction.dtype)
        copier.append(copier.statements, "store", (part.name, place, made, None), reduction, made.dtype)
    loops = [*chunks.loops, *zip(body.vars, body.sizes)]
    return _body(loops, chunks.left, copier.statements)


def _second(
    body: LoopBody, chunks: _Chunks, reductions: Sequence[Value], parts: Sequence[Buffer], place: Expr
) -> LoopBody:
    """The node that reduces what the chunks gave, and does what followed the reductions."""
    inside = _inside(body)
    part_of = {reduction.id: part for reduction, part in zip(reductions, parts)}
    copier = _Copier({})
    for statement in body.statements:
        if statement.id in inside:
            continue
        if statement.op != "reduction":
            copier.copy([statement], copier.statements)
            continue
        args: tuple[Any, ...] = (part_of[statement.id].name, place)
        loaded = copier.append(copier.statements, "load", args, statement, statement.dtype)
        args = (statement.args[0], loaded)
        copier.known[statement.id] = copier.append(copier.statements, "reduction", args, statement, statement.dtype)
    return _body(list(zip(body.vars, body.sizes)), chunks.loops, copier.statements)


def _body(loops: Sequence[tuple[Var, Expr]], reduced: Sequence[tuple[Var, Expr]], statements: list[Value]) -> LoopBody:
    return LoopBody(
        tuple(var for var, _ in loops),
        tuple(size for _, size in loops),
        tuple(var for var, _ in reduced),
        tuple(size for _, size in reduced),
        statements,
    )


def _within(copier: _Copier, bound: tuple[Expr, Expr], like: Value) -> Value:
    """Whether a point of a chunk is one of the loop that was cut."""
    position, size = (
        copier.append(copier.statements, "index_expr", (expr, torch.int64), like, torch.int64) for expr in bound
    )
    return copier.append(copier.statements, "lt", (position, size), like, torch.bool)


def _needed(users: Sequence[Value], among: Sequence[Value], without: set[int]) -> list[Value]:
    """The statements of `among` that `users` need, directly or not, in order."""
    needed = {each for user in users for each in operands(user)}
    found = []
    for statement in reversed(among):
        if statement.id in needed and statement.id not in without:
            found.append(statement)
            needed |= operands(statement)
    return found[::-1]


def identity(kind: str, dtype: torch.dtype) -> int | float | bool:
    """What a reduction of `KINDS` starts from."""
    if kind == "any":
        return False
    if kind in ("sum", "prod"):
        return float(kind == "prod") if dtype.is_floating_point else int(kind == "prod")
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if kind == "max" else info.max


__all__ = ["KINDS", "identity", "split_reductions"]
