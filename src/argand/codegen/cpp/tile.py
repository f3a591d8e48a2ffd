"""Transposing loads and stores: a stage that walks some buffers along one variable and others along another.

In: a `StagePlan` whose vector variable v strides through some buffers that are contiguous along another loop variable
w. Out: loops over tiles of w and v; in a tile those buffers are read and written along w, one vector per v, and
transposed in registers, so that all sides touch whole cache lines.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from argand.codegen.analysis import StageFacts, hint, lane_stride
from argand.codegen.cpp.stage_plan import StagePlan
from argand.codegen.cpp.statements import Lanes, Printer
from argand.codegen.cpp.types import element, vector_type
from argand.graph.sizes.expr import Var, as_int, coefficient, substitute, to_c
from argand.ir.loops import Value, with_nested


def tile_variable(facts: StageFacts, plan: StagePlan) -> tuple[Var, frozenset[Value]] | None:
    """The variable w to tile with, and the loads and stores along it; None when tiling does not help."""
    vector = plan.vector
    if vector is None or vector not in plan.point or plan.reduce or plan.lanes < 4:
        return None
    if hint(plan.sizes[vector]) < plan.lanes // 2:
        return None
    best: tuple[Var, frozenset[Value]] | None = None
    for var in plan.point:
        if var is vector or hint(plan.sizes[var]) < max(plan.lanes // 2, 4):
            continue
        chosen = frozenset(value for value in facts.statements if _transposed(facts, value, vector, var, plan))
        more = best is None or len(chosen) > len(best[1])
        if chosen and more and _stores_in_order(facts, chosen, vector, plan.lanes):
            best = (var, chosen)
    return best


def _transposed(facts: StageFacts, value: Value, vector: Var, along: Var, plan: StagePlan) -> bool:
    if value.op not in ("load", "store") or vector not in facts.deps[value]:
        return False
    if value.op == "store" and (value.args[3] is not None or _reads(facts, value.args[0])):
        return False
    index = value.args[1]
    stride = coefficient(index, vector)
    if stride is None or as_int(stride) in (0, 1) or any(v in facts.indirect for v in index.free):
        return False
    size = element(value.dtype).size * plan.lanes
    return size in (8, 16, 32, 64) and lane_stride(facts, index, along, plan.lanes) == 1


def _reads(facts: StageFacts, buffer: str) -> bool:
    """Whether the stage reads what it writes: stores of a tile come after all that its points read."""
    return any(value.op == "load" and value.args[0] == buffer for value in with_nested(facts.statements))


def _stores_in_order(facts: StageFacts, transposed: frozenset[Value], vector: Var, lanes: int) -> bool:
    """Whether every other store is contiguous along the vector variable and none accumulates."""
    stores = [value for value in facts.statements if value.op == "store" and value not in transposed]
    return all(v.args[3] is None and lane_stride(facts, v.args[1], vector, lanes) == 1 for v in stores)


def emit_tiled(plan: StagePlan, printer: Printer, statements: Callable[[int], None], pragma: str) -> None:
    """Print the point loops of a tiled stage; the last two are w and v.

    Arguments:
        statements: prints what belongs directly inside so many of the outermost loops.
        pragma: before the outermost loop.
    """
    out = printer.out
    others, (along, vector) = plan.point[:-2], plan.point[-2:]
    lanes, w, v = plan.lanes, along.name, vector.name
    if pragma:
        out.line(pragma)
    for var in others:
        out.line(f"for (i64 {var.name} = 0; {var.name} < {to_c(plan.sizes[var])}; ++{var.name})")
    width, height = to_c(plan.sizes[along]), to_c(plan.sizes[vector])
    # Four tiles side by side: both sides then touch runs of cache lines, which the hardware prefetches.
    with out.block(f"for (i64 {w}_block = 0; {w}_block < {width}; {w}_block += {4 * lanes})"):
        statements(len(others))
        out.line(f"const i64 {w}_stop = min_i64({w}_block + {4 * lanes}, {width});")
        out.line(f"for (i64 {v} = 0; {v} < {height}; {v} += {lanes})")
        with out.block(f"for (i64 {w}_tile = {w}_block; {w}_tile < {w}_stop; {w}_tile += {lanes})"):
            whole_w, whole_v = (_divides(plan.sizes[var], lanes) for var in (along, vector))
            if whole_w and whole_v:
                _tile(plan, printer, statements, along, vector, "", "")
                return
            out.line(f"const i64 {w}_count = min_i64({lanes}, {width} - {w}_tile);")
            out.line(f"const i64 {v}_count = min_i64({lanes}, {height} - {v});")
            with out.block(f"if ({w}_count == {lanes} && {v}_count == {lanes})"):
                _tile(plan, printer, statements, along, vector, "", "")
            with out.block("else"):
                _tile(plan, printer, statements, along, vector, f"{w}_count", f"{v}_count")


def _divides(size: object, lanes: int) -> bool:
    known = as_int(size)  # type: ignore[arg-type]  # an Expr
    return known is not None and known % lanes == 0


def _tile(
    plan: StagePlan, printer: Printer, statements: Callable[[int], None], along: Var, vector: Var, w_count: str,
    v_count: str,
) -> None:  # fmt: skip
    """One tile: transposed loads, the body for each of its rows, transposed stores."""
    out, lanes, w = printer.out, plan.lanes, along.name
    level = len(plan.point)
    row, column = Var("row"), Var(f"{w}_tile")
    stores: list[str] = []
    for value in sorted(plan.transposed, key=lambda item: item.id):
        memory = printer.memory[value.args[0]]
        kind = vector_type(memory.dtype, lanes)
        index = substitute(value.args[1], {along: column, vector: vector + row})
        pointer = f"{memory.name} + {to_c(index)}"
        tail, count = ("_tail", f", {w_count}") if w_count else ("", "")
        rows = f"for (int row = 0; row < {v_count or lanes}; ++row)"
        out.line(f"{kind} tile{value.id}[{lanes}]{' = {}' if v_count else ''};")
        if memory.dtype == torch.bool:
            pointer = f"({'const ' if value.op == 'load' else ''}i8*)({pointer})"
        if value.op == "store":
            stores += [
                f"transpose(tile{value.id});",
                f"{rows} store{tail}({pointer}, tile{value.id}[row]{count});",
            ]
            continue
        out.line(f"{rows} tile{value.id}[row] = load{tail}<{kind}>({pointer}{count});")
        out.line(f"transpose(tile{value.id});")
    with out.block(f"for (int row = 0; row < {w_count or lanes}; ++row)"):
        out.line(f"const i64 {w} = {w}_tile + row;")
        with printer.within(Lanes(vector, lanes, tail=v_count, tile=plan.transposed)):
            statements(level - 1)
            statements(level)
    for line in stores:
        out.line(line)
