"""Vertical reductions that go through rows along all columns, with accumulators in memory.

Loops over strips of columns, each with all rows, have their accumulators in registers; but most of what the hardware
reads ahead of a long row is then for another strip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from argand.codegen.cpp.reduce import BLOCK, Span, is_arg
from argand.codegen.cpp.statements import Lanes
from argand.graph.sizes.expr import ZERO, Var

if TYPE_CHECKING:
    from argand.codegen.cpp.loops import StageLoops

ROWS = 8  # that are read side by side
ROW_BYTES = 1 << 15  # of columns, whose accumulators stay in the first level of cache
LEAST_ROWS = 16


def sweeps(loops: StageLoops, var: Var, span: Span) -> bool:
    """Whether a vertical reduction along `var` goes through rows."""
    plan, reductions = loops.plan, loops.facts.reductions
    if var not in plan.point or len(plan.reduce) != 1 or not reductions or loops.facts.scans:
        return False
    if any(is_arg(value.args[0]) or value.args[1].dtype == torch.bool for value in reductions):
        return False
    return span.count is not None and span.count > 8 * plan.lanes and LEAST_ROWS <= loops.iterations(0) <= BLOCK


def emit_swept(loops: StageLoops, var: Var, span: Span, body: Callable[[], None]) -> None:
    """Print the loops, over as many columns at a time as have their accumulators in cache."""
    assert span.count is not None
    width = 4 if loops.light() else 1
    step = width * loops.plan.lanes
    widest = ROW_BYTES // sum(value.dtype.itemsize for value in loops.facts.reductions) // step * step
    begin = "" if span.begin == "0" else f"{span.begin} + "
    start = 0
    while span.count - start >= step:
        columns = min(widest, (span.count - start) // step * step)
        with loops.printer.out.block(""), loops.printer.within(Lanes(var, loops.plan.lanes)):
            _sweep(loops, var, Span(f"{begin}{start}", f"{begin}{start + columns}", columns), width)
        start += columns
    if start < span.count:
        loops.vector_loop(var, Span(f"{begin}{start}", span.end, span.count - start), body)


def _sweep(loops: StageLoops, var: Var, span: Span, width: int) -> None:
    """A few rows at a time where little is computed for each vector, else row by row."""
    out, lanes, row = loops.printer.out, loops.plan.lanes, loops.plan.reduce[0]
    wide, first, at = f"{var.name}_wide", f"{row.name}_first", f"{var.name}_wide - ({span.begin}) + {lanes} * u"
    rows, height = loops.span(row), ROWS if width > 1 else 1
    columns = f"for (i64 {wide} = {span.begin}; {wide} < {span.end}; {wide} += {lanes * width})"
    vectors = f"for (int u = 0; u < {width}; ++u)"
    accumulators, kept = loops.accumulators(), list[str]()
    for accumulator in accumulators:
        accumulator.unroll, accumulator.jam = width, True
        kept.append(f"load<{accumulator.type}>(row{accumulator.value.id} + {at})")
        out.line(f"alignas(64) {accumulator.scalar_type} row{accumulator.value.id}[{span.count}];")
    loops.jammed = width
    with out.block(f"for (i64 {first} = {rows.begin}; {first} < {rows.end}; {first} += {height})"):
        if width == 1:
            out.line(f"const i64 {row.name} = {first};")
            for value in loops.jammed_values()[0]:
                loops.printer.emit(value)
        else:
            out.line(f"const i64 {row.name}_last = min_i64({first} + {height}, {rows.end});")
        with out.block(columns):
            for accumulator, text in zip(accumulators, kept):
                accumulator.declare(loops.printer)
                out.line(f"if ({first} > {rows.begin}) {vectors} {accumulator.name(True)} = {text};")
            if width == 1:
                loops.jammed_steps(accumulators, ZERO, swept=True)
            else:
                loops.spans[row] = Span(first, f"{row.name}_last", None)
                loops.reduce_loop(0, accumulators)
                del loops.spans[row]
            for accumulator in accumulators:
                out.line(f"{vectors} store(row{accumulator.value.id} + {at}, {accumulator.name(True)});")
    loops.jammed = 0
    with out.block(columns):
        out.line(f"#pragma GCC unroll {width}")
        with out.block(vectors):
            loops.column_results(var, accumulators, kept)
