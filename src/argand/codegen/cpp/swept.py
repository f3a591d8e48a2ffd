"""Vertical reductions that go through rows along all columns, with accumulators in memory.

Loops over strips of columns, each with all rows, have their accumulators in registers; but most of what the hardware
reads ahead of a long row is then for another strip.
"""

from __future__ import annotations

import contextlib
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
        if var not in plan.point or not plan.reduce or not reductions or self.facts.scans:
            return False
        if any(is_arg(value.args[0]) or value.args[1].dtype == torch.bool for value in reductions):
            return False
        strip = (8 if self.light() else 1) * plan.lanes
        return columns > strip and LEAST_ROWS <= self.iterations(0) <= BLOCK

    def _sweep(self, var: Var, span: Span, width: int) -> None:
        """A few rows at a time where little is computed for each vector, else row by row."""
        out, lanes, row = self.printer.out, self.plan.lanes, self.plan.reduce[-1]
        wide, first, at = f"{var.name}_wide", f"{row.name}_first", f"{var.name}_wide - ({span.begin}) + {lanes} * u"
        columns = f"for (i64 {wide} = {span.begin}; {wide} < {span.end}; {wide} += {lanes * width})"
        vectors, height = f"for (int u = 0; u < {width}; ++u)", ROWS if width > 1 else 1
        accumulators, kept, names = self.accumulators(), list[str](), list[str]()
        for accumulator in accumulators:
            accumulator.unroll, accumulator.jam = width, True
            names.append(f"row{accumulator.value.id}")
            kept.append(f"load<{accumulator.type}>({names[-1]} + {at})")
            out.line(f"alignas(64) {accumulator.scalar_type} {names[-1]}[{span.count}];")

        def keep() -> None:
            for name, accumulator in zip(names, accumulators):
                out.line(f"{vectors} store({name} + {at}, {accumulator.name(True)});")

        with out.block(columns):
            for accumulator in accumulators:
                accumulator.declare(self.printer)
            keep()
        self.jammed = width
        rows = self.span(row)
        with contextlib.ExitStack() as nest:
            for outer in self.plan.reduce[:-1]:
                around = self.span(outer)
                name = outer.name
                nest.enter_context(out.block(f"for (i64 {name} = {around.begin}; {name} < {around.end}; ++{name})"))
            head = f"for (i64 {first} = {rows.begin}; {first} < {rows.end}; {first} += {height})"
            nest.enter_context(out.block(head))
            if width == 1:
                out.line(f"const i64 {row.name} = {first};")
                for value in self.jammed_values()[0]:
                    self.printer.emit(value)
            else:
                out.line(f"const i64 {row.name}_last = min_i64({first} + {height}, {rows.end});")
            nest.enter_context(out.block(columns))
            for accumulator, text in zip(accumulators, kept):
                accumulator.declare(self.printer)
                out.line(f"{vectors} {accumulator.name(True)} = {text};")
            if width == 1:
                self.jammed_steps(accumulators, ZERO, swept=True)
            else:
                self.spans[row] = Span(first, f"{row.name}_last", None)
                self.reduce_loop(len(self.plan.reduce) - 1, accumulators)
                del self.spans[row]
            keep()
        self.jammed = 0
        with out.block(columns):
            out.line(f"#pragma GCC unroll {width}")
            with out.block(vectors):
                self.column_results(var, accumulators, kept)
