"""Prints one stage: its loops, vector bodies and tails, accumulators.

In: a `StagePlan` and a `Printer`. Out: lines of C++.

Shape of a stage with both kinds of loops (the vector loop may be any of them):

    statements of no loop
    for (point loops) {
      statements of these loops that come before the reductions
      accumulators
      for (reduction loops) { statements; accumulators step }
      results of the reductions
      statements after the reductions
    }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import torch

from argand.codegen.analysis import StageFacts, hint
from argand.codegen.cpp.reduce import BLOCK, Accumulator, Span, is_arg, position_of
from argand.codegen.cpp.stage_plan import StagePlan
from argand.codegen.cpp.statements import Lanes, Printer
from argand.codegen.cpp.tile import emit_tiled
from argand.graph.sizes.expr import Expr, Var, as_int, to_c
from argand.ir.loops import Value, with_nested
from argand.ir.operations import DIVISION, cost
from argand.quick_dataclasses import dataclass

PARTS = 64  # pieces that a whole-tensor reduction is cut into; fixed, so that results do not depend on the thread count


@dataclass(slots=True)
class Parallel:
    """How the outermost loops run on threads.

    Arguments:
        pragma: the OpenMP line; "" runs on one thread.
        collapse: how many leading point loops it covers.
        chunk: elements of a piece of the vector loop, when that loop is cut into pieces too; 0 when not.
        pieces: number of pieces of a whole-tensor reduction; 0 when it is not cut.
    """

    pragma: str = ""
    collapse: int = 0
    chunk: int = 0
    pieces: int = 0


@dataclass(slots=True)
class StageLoops:
    """Prints one stage."""

    printer: Printer
    plan: StagePlan
    facts: StageFacts
    parallel: Parallel = field(default_factory=Parallel)
    levels: dict[int, list[Value]] = field(default_factory=dict)
    after: list[Value] = field(default_factory=list)
    spans: dict[Var, Span] = field(default_factory=dict)
    jammed: int = 0  # accumulators side by side along the vector variable; statements then run in the innermost loop

    def emit(self) -> None:
        """Print the stage."""
        self._assign_levels()
        self.statements(0)
        if self.plan.transposed:
            emit_tiled(self.plan, self.printer, self.statements, self.parallel.pragma)
        elif self.parallel.pragma and not self.parallel.pieces:
            self._parallel_point()
        else:
            self._point(0)
            if self.plan.streamed:
                self.printer.out.line("end_stream();")

    def _assign_levels(self) -> None:
        order = [*self.plan.point, *self.plan.reduce]
        directly_nested = len(self.plan.point) - 2 if self.plan.transposed else self.parallel.collapse
        position = {var: index + 1 for index, var in enumerate(order)}
        for value in self.facts.statements:
            if value.op in ("constant", "reduction"):
                continue
            if value in self.facts.after:
                self.after.append(value)
                continue
            level = max((position[var] for var in self.facts.deps[value] if var in position), default=0)
            if 0 < level < directly_nested:
                level = directly_nested  # collapsed loops have nothing between them
            self.levels.setdefault(level, []).append(value)

    def statements(self, level: int) -> None:
        """Print the statements that belong directly inside the `level` outermost loops."""
        if self.jammed and level >= len(self.plan.point):
            return
        for value in self.levels.get(level, ()):
            self.printer.emit(value)

    def span(self, var: Var) -> Span:
        span = self.spans.get(var)
        if span is None:
            size = self.plan.sizes[var]
            span = Span("0", to_c(size), as_int(size))
        return span

    # --- pointwise loops

    def _parallel_point(self) -> None:
        """The loops that threads share, directly nested, then the rest."""
        out, parallel = self.printer.out, self.parallel
        out.line(parallel.pragma)
        heads = []
        for var in self.plan.point[: parallel.collapse]:
            heads.append(f"for (i64 {var.name} = 0; {var.name} < {to_c(self.plan.sizes[var])}; ++{var.name})")
        vector = self.plan.vector
        if parallel.chunk and vector is not None:
            name, size = vector.name, to_c(self.plan.sizes[vector])
            heads.append(f"for (i64 {name}_begin = 0; {name}_begin < {size}; {name}_begin += {parallel.chunk})")
        for head in heads[:-1]:
            out.line(head)
        with out.block(heads[-1]):
            if parallel.chunk and vector is not None:
                known = as_int(self.plan.sizes[vector])
                even = known is not None and known % parallel.chunk == 0
                end = f"{name}_begin + {parallel.chunk}"
                if not even:
                    out.line(f"const i64 {name}_end = min_i64({end}, {size});")
                    end = f"{name}_end"
                self.spans[vector] = Span(f"{name}_begin", end, parallel.chunk if even else None, parallel.chunk)
            if parallel.collapse:
                self.statements(parallel.collapse)
            self._point(parallel.collapse)
            if self.plan.streamed:
                out.line("end_stream();")  # other threads may read what was written once the loop is done

    def _point(self, depth: int) -> None:
        point = self.plan.point
        if depth == len(point):
            self._reductions()
            for value in self.after:
                self.printer.emit(value)
            return
        var = point[depth]

        def body() -> None:
            self.statements(depth + 1)
            self._point(depth + 1)

        self._loop(var, body)

    def _loop(self, var: Var, body: Callable[[], None]) -> None:
        """One loop over `var`, by vectors if it is the vector variable."""
        span = self.span(var)
        if var is self.plan.vector and self.plan.lanes > 1:
            width = self._jam_width(var)
            if self.through_rows(var, span, body):
                return
            if width > 1:
                self._jammed_loop(var, span, width, body)
            else:
                self.vector_loop(var, span, body)
            return
        name = var.name
        if span.count == 1 and span.begin == "0":
            with self.printer.out.block(""):
                self.printer.out.line(f"const i64 {name} = 0;")
                body()
            return
        with self.printer.out.block(f"for (i64 {name} = {span.begin}; {name} < {span.end}; ++{name})"):
            body()

    def through_rows(self, var: Var, span: Span, body: Callable[[], None]) -> bool:
        """Print a vertical reduction that goes through rows along all columns; False where it does not."""
        return False

    def vector_loop(self, var: Var, span: Span, body: Callable[[], None]) -> None:
        """Whole vectors, then the lanes that remain."""
        out, name, lanes = self.printer.out, var.name, self.plan.lanes
        full = Lanes(var, lanes)
        if span.count is not None:
            main = span.count - span.count % lanes
            begin = "" if span.begin == "0" else f"{span.begin} + "
            if main:
                head = f"for (i64 {name} = {span.begin}; {name} < {begin}{main}; {name} += {lanes})"
                with out.block(head), self.printer.within(full):
                    body()
            if span.count > main:
                with out.block(""):
                    out.line(f"const i64 {name} = {begin}{main};")
                    with self.printer.within(replace(full, tail=str(span.count - main))):
                        body()
            return
        with out.block(""):
            out.line(f"i64 {name} = {span.begin};")
            with out.block(f"for (; {name} + {lanes} <= {span.end}; {name} += {lanes})"), self.printer.within(full):
                body()
            with out.block(f"if ({name} < {span.end})"):
                out.line(f"const i64 {name}_rest = {span.end} - {name};")
                with self.printer.within(replace(full, tail=f"{name}_rest")):
                    body()

    def _jam_width(self, var: Var) -> int:
        """Vectors of a vertical reduction that run side by side: runs of cache lines, and independent additions."""
        plan = self.plan
        if var not in plan.point or not plan.reduce or not self.facts.reductions or not self.light():
            return 1
        if self.facts.scans:
            return 1
        span = self.span(var)
        known = span.count if span.count is not None else span.most or hint(plan.sizes[var])
        whole = known // plan.lanes
        most = 8 if plan.lanes >= 16 else 4  # accumulators, of two reductions at most, beside what a point computes
        return max(whole if whole <= most else 4, 1)

    def column_results(self, var: Var, accumulators: list[Accumulator], results: list[str]) -> None:
        """What follows a vertical reduction, for one of the vectors side by side."""
        self.printer.out.line(f"const i64 {var.name} = {var.name}_wide + {self.plan.lanes} * u;")
        self.statements(len(self.plan.point))
        for accumulator, result in zip(accumulators, results):
            self._define(accumulator.value, result)
        for value in self.after:
            self.printer.emit(value)

    def _jammed_loop(self, var: Var, span: Span, width: int, body: Callable[[], None]) -> None:
        """Vertical reduction of `width` vectors at a time; what remains one vector at a time."""
        out, name, lanes = self.printer.out, var.name, self.plan.lanes
        step = lanes * width

        def main() -> None:
            self.jammed = width
            with self.printer.within(Lanes(var, lanes)):
                accumulators = self.accumulators()
                results = self._reduce(accumulators)
                self.jammed = 0
                out.line(f"#pragma GCC unroll {width}")
                with out.block(f"for (int u = 0; u < {width}; ++u)"):
                    self.column_results(var, accumulators, results)

        def rest_of(rest: Span) -> None:
            narrower = 4 if width > 4 else 2 if width > 2 else 1
            if narrower > 1 and (rest.count is None or rest.count >= narrower * lanes):
                self._jammed_loop(var, rest, narrower, body)
            else:
                self.vector_loop(var, rest, body)

        if span.count is not None:
            whole = span.count - span.count % step
            begin = "" if span.begin == "0" else f"{span.begin} + "
            if whole:
                head = f"for (i64 {name}_wide = {span.begin}; {name}_wide < {begin}{whole}; {name}_wide += {step})"
                with out.block(head):
                    main()
            if span.count > whole:
                rest_of(Span(f"{begin}{whole}", span.end, span.count - whole))
            return
        with out.block(""):
            start = f"{name}_from{width}"
            out.line(f"i64 {start} = {span.begin};")
            with out.block(f"for (; {start} + {step} <= {span.end}; {start} += {step})"):
                out.line(f"const i64 {name}_wide = {start};")
                main()
            rest_of(Span(start, span.end, None))

    # --- reductions

    def accumulators(self) -> list[Accumulator]:
        plan = self.plan
        horizontal = plan.horizontal
        accumulators = []
        points = 1
        for var in plan.reduce:
            points *= as_int(plan.sizes[var]) or (1 << 31)
        for value in self.facts.reductions:
            vertical = plan.vector is not None and not horizontal and plan.lanes > 1
            lanes = plan.lanes if horizontal or vertical else 1
            accumulators.append(Accumulator(value, lanes, horizontal, wide_index=points >= 1 << 31))
        return accumulators

    def _reductions(self) -> None:
        """Accumulators, reduction loops, results."""
        if not self.plan.reduce:
            return
        for scan in self.facts.scans:
            self.printer.declare_state(scan)
        accumulators = self.accumulators()
        if self.parallel.pieces:
            self._reduce_in_pieces(accumulators)
            return
        results = self._reduce(accumulators)
        for accumulator, result in zip(accumulators, results):
            self._define(accumulator.value, result)

    def _define(self, value: Value, text: str) -> None:
        self.printer.comment(value.origin)
        self.printer.out.line(f"auto tmp{value.id} = {text};")

    def iterations(self, depth: int) -> int:
        """Steps of one accumulator in the reduction loops from `depth` on."""
        total = 1
        for var in self.plan.reduce[depth:]:
            span = self.span(var)
            count = span.count if span.count is not None else max(hint(self.plan.sizes[var]), 4096)
            total *= -(-count // self.plan.lanes) if var is self.plan.vector else count
        return total

    def _reduce(self, accumulators: list[Accumulator]) -> list[str]:
        """Print the reduction loops; returns the results as C++ text."""
        unroll = self.jammed or self._unroll(accumulators)
        for accumulator in accumulators:
            accumulator.unroll, accumulator.jam = unroll, bool(self.jammed)
        if self.jammed:
            unroll = 1  # what one accumulator adds up
        cascaded = [a for a in accumulators if a.kind == "sum" and a.dtype.is_floating_point]
        long = cascaded and self.iterations(0) > BLOCK * unroll
        for accumulator in accumulators:
            accumulator.cascade = bool(long) and accumulator in cascaded
            if accumulator.cascade:
                accumulator.declare_total(self.printer)
            else:
                accumulator.declare(self.printer)
        if long:
            depth = 0
            while self.iterations(depth + 1) > BLOCK * unroll:
                depth += 1
            self._blocks(0, depth, accumulators)
        else:
            self.reduce_loop(0, accumulators)
        return [accumulator.result(self.printer) for accumulator in accumulators]

    def _blocks(self, depth: int, at: int, accumulators: list[Accumulator]) -> None:
        """Loops down to `at`; that one runs in blocks, after each of which the float sums are flushed."""
        out = self.printer.out
        var = self.plan.reduce[depth]
        if depth < at:

            def body() -> None:
                self.statements(len(self.plan.point) + depth + 1)
                self._blocks(depth + 1, at, accumulators)

            self._loop(var, body)
            return
        unroll = 1 if self.jammed else accumulators[0].unroll
        width = self.plan.lanes * unroll if var is self.plan.vector else 1
        step = max(1, BLOCK * (unroll if width == 1 else 1) // self.iterations(depth + 1)) * width
        span, name = self.span(var), var.name
        if span.count is not None and span.count > step:
            step = _even_step(span.count, step, width)
        with out.block(f"for (i64 {name}_block = {span.begin}; {name}_block < {span.end}; {name}_block += {step})"):
            even = span.count is not None and span.count % step == 0
            end = f"{name}_block + {step}"
            if not even:
                out.line(f"const i64 {name}_stop = min_i64({end}, {span.end});")
                end = f"{name}_stop"
            for accumulator in accumulators:
                if accumulator.cascade:
                    accumulator.declare(self.printer)
            saved = self.spans.get(var)
            self.spans[var] = Span(f"{name}_block", end, step if even else None)
            self.reduce_loop(depth, accumulators)
            if saved is None:
                del self.spans[var]
            else:
                self.spans[var] = saved
            for accumulator in accumulators:
                accumulator.flush(self.printer)

    def reduce_loop(self, depth: int, accumulators: list[Accumulator]) -> None:
        """Reduction loops from `depth` on, without blocks."""
        reduce = self.plan.reduce
        base = len(self.plan.point)
        if depth == len(reduce):
            self._steps(accumulators, unrolled=False)
            return
        var = reduce[depth]
        if var is self.plan.vector and accumulators and accumulators[0].unroll > 1:
            self._unrolled_loop(var, accumulators)
            return

        def body() -> None:
            self.statements(base + depth + 1)
            self.reduce_loop(depth + 1, accumulators)

        self._loop(var, body)

    def _steps(self, accumulators: Sequence[Accumulator], unrolled: bool) -> None:
        body = self.facts.body
        position = position_of(tuple(body.reduction_vars), tuple(body.reduction_sizes))
        if self.jammed:
            self.jammed_steps(accumulators, position)
            return
        for accumulator in accumulators:
            self.printer.comment(accumulator.value.origin)
            accumulator.step(self.printer, position, unrolled)

    def jammed_values(self) -> tuple[list[Value], list[Value]]:
        """What is computed in the innermost point of a jammed vertical reduction: what is alike in all vectors (indices
        that are read and checked), and the rest."""
        plan = self.plan
        inner = range(len(plan.point), len(plan.point) + len(plan.reduce) + 1)
        values = [value for level in inner for value in self.levels.get(level, ())]
        alike = [value for value in values if plan.point[-1] not in self.facts.deps[value] and value.op != "store"]
        return alike, [value for value in values if value not in alike]

    def jammed_steps(self, accumulators: Sequence[Accumulator], position: Expr, swept: bool = False) -> None:
        """The innermost point of a jammed vertical reduction; `swept`: what is alike in all vectors is known."""
        out, plan, width = self.printer.out, self.plan, self.jammed
        var = plan.point[-1]
        alike, values = self.jammed_values()
        for value in alike if not swept else ():
            self.printer.emit(value)
        out.line(f"#pragma GCC unroll {width}")
        with out.block(f"for (int u = 0; u < {width}; ++u)"):
            out.line(f"const i64 {var.name} = {var.name}_wide + {plan.lanes} * u;")
            for value in values:
                self.printer.emit(value)
            for accumulator in accumulators:
                accumulator.step(self.printer, position, True)

    def light(self) -> bool:
        """Whether several copies of the body and its accumulators fit into the registers."""
        body = [v for v in with_nested(self.facts.statements) if v.op != "constant" and v not in self.facts.after]
        reductions = self.facts.reductions
        if len(body) > 12 or len(reductions) > 2 or any(cost(v.op) >= DIVISION or v.op == "masked" for v in body):
            return False
        return not any(is_arg(v.args[0]) or v.args[1].dtype == torch.bool for v in reductions)

    def _unroll(self, accumulators: list[Accumulator]) -> int:
        """Independent accumulators: addition takes several cycles, and light bodies would wait for it."""
        plan = self.plan
        if not plan.horizontal or not accumulators or self.facts.scans or not self.light():
            return 1
        assert plan.vector is not None
        count = self.span(plan.vector).count
        if count is None:
            return 4
        whole = count // plan.lanes
        return 4 if whole >= 8 else 2 if whole >= 4 and whole % 2 == 0 else 1

    def _unrolled_loop(self, var: Var, accumulators: list[Accumulator]) -> None:
        """The innermost reduction loop with several accumulators, then what remains with the first."""
        out, name, lanes = self.printer.out, var.name, self.plan.lanes
        unroll = accumulators[0].unroll
        width = lanes * unroll
        span = self.span(var)
        level = len(self.plan.point) + len(self.plan.reduce)

        def inner(unrolled: bool) -> Callable[[], None]:
            def body() -> None:
                self.statements(level)
                self._steps(accumulators, unrolled)

            return body

        def main_loop(head: str) -> None:
            with out.block(head):
                out.line(f"#pragma GCC unroll {unroll}")
                with out.block(f"for (int u = 0; u < {unroll}; ++u)"):
                    out.line(f"const i64 {name} = {name}_wide + {lanes} * u;")
                    with self.printer.within(Lanes(var, lanes)):
                        inner(True)()

        if span.count is not None:
            main = span.count - span.count % width
            begin = "" if span.begin == "0" else f"{span.begin} + "
            if main:
                main_loop(f"for (i64 {name}_wide = {span.begin}; {name}_wide < {begin}{main}; {name}_wide += {width})")
            if span.count > main:
                rest = Span(f"{begin}{main}", span.end, span.count - main)
                self.vector_loop(var, rest, inner(False))
            return
        with out.block(""):
            out.line(f"i64 {name}_wide = {span.begin};")
            main_loop(f"for (; {name}_wide + {width} <= {span.end}; {name}_wide += {width})")
            self.vector_loop(var, Span(f"{name}_wide", span.end, None), inner(False))

    def _reduce_in_pieces(self, accumulators: list[Accumulator]) -> None:
        """A reduction of everything to one value: threads reduce pieces, whose results are combined in order."""
        out, pieces = self.printer.out, self.parallel.pieces
        var = max(self.plan.reduce, key=lambda v: hint(self.plan.sizes[v]))
        size, name = self.plan.sizes[var], var.name
        width = self.plan.lanes * 4 if var is self.plan.vector else 1
        known = as_int(size)
        if known is not None:
            length = (known + pieces - 1) // pieces
            step = str((length + width - 1) // width * width)
        else:
            each = f"({to_c(size)} + {pieces - 1}) / {pieces}"
            out.line(f"const i64 {name}_step = ({each} + {width - 1}) / {width} * {width};")
            step = f"{name}_step"
        for accumulator in accumulators:
            ident = accumulator.value.id
            precise = accumulator.kind == "sum" and accumulator.dtype.is_floating_point
            kind = accumulator.total_type if precise else accumulator.scalar_type
            out.line(f"{kind} part{ident}[{pieces}];")
            if is_arg(accumulator.kind):
                out.line(f"i64 part_at{ident}[{pieces}];")
        out.line(self.parallel.pragma)
        with out.block(f"for (i64 piece = 0; piece < {pieces}; ++piece)"):
            out.line(f"const i64 {name}_from = min_i64(piece * {step}, {to_c(size)});")
            out.line(f"const i64 {name}_to = min_i64({name}_from + {step}, {to_c(size)});")
            self.spans[var] = Span(f"{name}_from", f"{name}_to", None)
            results = self._reduce(accumulators)
            del self.spans[var]
            for accumulator, result in zip(accumulators, results):
                ident = accumulator.value.id
                if is_arg(accumulator.kind):
                    out.line(f"part_at{ident}[piece] = {result};")
                    result = accumulator.best()
                elif accumulator.cascade:
                    result = f"total{ident}"
                out.line(f"part{ident}[piece] = {result};")
        for accumulator in accumulators:
            self._combine_pieces(accumulator)

    def _combine_pieces(self, accumulator: Accumulator) -> None:
        out, ident, pieces = self.printer.out, accumulator.value.id, self.parallel.pieces
        kind = accumulator.kind
        first = f"part{ident}[0]"
        if is_arg(kind):
            out.line(f"auto best_part{ident} = {first}; i64 index_part{ident} = part_at{ident}[0];")
            out.line(f"for (int piece = 1; piece < {pieces}; ++piece)")
            better = f"arg_{kind[3:]}_better(part{ident}[piece], best_part{ident})"
            worse = f"arg_{kind[3:]}_better(best_part{ident}, part{ident}[piece])"  # pieces may be of an inner loop
            with out.block(f"if ({better} || (!{worse} && part_at{ident}[piece] < index_part{ident}))"):
                out.line(f"best_part{ident} = part{ident}[piece]; index_part{ident} = part_at{ident}[piece];")
            self._define(accumulator.value, f"index_part{ident}")
            return
        whole = f"whole{ident}"
        out.line(f"auto {whole} = {first};")
        step = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}"}.get(kind, f"{kind}imum({{0}}, {{1}})")
        text = step.format(whole, f"part{ident}[piece]")
        out.line(f"for (int piece = 1; piece < {pieces}; ++piece) {whole} = {text};")
        self._define(accumulator.value, f"{accumulator.scalar_type}({whole})")


def _even_step(count: int, step: int, width: int) -> int:
    """A block length near `step`, a multiple of `width`, that divides `count`; `step` itself when there is none."""
    for candidate in range(step, step // 2, -width):
        if count % candidate == 0:
            return candidate
    return step


def static_points(plan: StagePlan, variables: Sequence[Var]) -> int | None:
    """Number of points of the loops when all sizes are known."""
    total = 1
    for var in variables:
        count = as_int(plan.sizes[var])
        if count is None:
            return None
        total *= count
    return total


def product_text(sizes: Sequence[Expr]) -> str:
    """C++ for the product of sizes."""
    return " * ".join(f"({to_c(size)})" for size in sizes) or "1"
