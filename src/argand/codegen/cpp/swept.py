"""Vertical reductions that go through rows along all columns, with accumulators in memory.

Loops over strips of columns, each with all rows, have their accumulators in registers; but most of what the hardware
reads ahead of a long row is then for another strip.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from argand.codegen.cpp.loops import StageLoops
from argand.codegen.cpp.reduce import BLOCK, Span, is_arg
from argand.codegen.cpp.statements import Lanes
from argand.graph.sizes.expr import ZERO, Var

ROWS = 8  # that are read side by side
ROW_BYTES = 1 << 15  # of columns, whose accumulators stay in the first level of cache
LEAST_ROWS = 16


class SweptLoops(StageLoops):
    """Prints one stage."""

    __slots__ = ()

    def through_rows(self, var: Var, span: Span, body: Callable[[], None]) -> bool:
        """As many columns at a time as have their accumulators in cache."""
        if span.count is None or not self._sweeps(var, span.count):
            return False
        width = 4 if self.light() else 1
        step = width * self.plan.lanes
        widest = ROW_BYTES // sum(value.dtype.itemsize for value in self.facts.reductions) // step * step
        begin = "" if span.begin == "0" else f"{span.begin} + "
        start = 0
        while span.count - start >= step:
            columns = min(widest, (span.count - start) // step * step)
            with self.printer.out.block(""), self.printer.within(Lanes(var, self.plan.lanes)):
                self._sweep(var, Span(f"{begin}{start}", f"{begin}{start + columns}", columns), width)
            start += columns
        if start < span.count:
            self.vector_loop(var, Span(f"{begin}{start}", span.end, span.count - start), body)
        return True

    def _sweeps(self, var: Var, columns: int) -> bool:
        """Whether a vertical reduction along `var` goes through rows."""
        plan, reductions = self.plan, self.facts.reductions
        if var not in plan.point or len(plan.reduce) != 1 or not reductions or self.facts.scans:
            return False
        if any(is_arg(value.args[0]) or value.args[1].dtype == torch.bool for value in reductions):
            return False
        return columns > 8 * plan.lanes and LEAST_ROWS <= self.iterations(0) <= BLOCK

    def _sweep(self, var: Var, span: Span, width: int) -> None:
        """A few rows at a time where little is computed for each vector, else row by row."""
        out, lanes, row = self.printer.out, self.plan.lanes, self.plan.reduce[0]
        wide, first, at = f"{var.name}_wide", f"{row.name}_first", f"{var.name}_wide - ({span.begin}) + {lanes} * u"
        rows, height = self.span(row), ROWS if width > 1 else 1
        columns = f"for (i64 {wide} = {span.begin}; {wide} < {span.end}; {wide} += {lanes * width})"
        vectors = f"for (int u = 0; u < {width}; ++u)"
        accumulators, kept = self.accumulators(), list[str]()
        for accumulator in accumulators:
            accumulator.unroll, accumulator.jam = width, True
            kept.append(f"load<{accumulator.type}>(row{accumulator.value.id} + {at})")
            out.line(f"alignas(64) {accumulator.scalar_type} row{accumulator.value.id}[{span.count}];")
        self.jammed = width
        with out.block(f"for (i64 {first} = {rows.begin}; {first} < {rows.end}; {first} += {height})"):
            if width == 1:
                out.line(f"const i64 {row.name} = {first};")
                for value in self.jammed_values()[0]:
                    self.printer.emit(value)
            else:
                out.line(f"const i64 {row.name}_last = min_i64({first} + {height}, {rows.end});")
            with out.block(columns):
                for accumulator, text in zip(accumulators, kept):
                    accumulator.declare(self.printer)
                    out.line(f"if ({first} > {rows.begin}) {vectors} {accumulator.name(True)} = {text};")
                if width == 1:
                    self.jammed_steps(accumulators, ZERO, swept=True)
                else:
                    self.spans[row] = Span(first, f"{row.name}_last", None)
                    self.reduce_loop(0, accumulators)
                    del self.spans[row]
                for accumulator in accumulators:
                    out.line(f"{vectors} store(row{accumulator.value.id} + {at}, {accumulator.name(True)});")
        self.jammed = 0
        with out.block(columns):
            out.line(f"#pragma GCC unroll {width}")
            with out.block(vectors):
                self.column_results(var, accumulators, kept)
