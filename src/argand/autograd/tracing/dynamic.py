"""`trace_dynamic`: one ATen program for many sizes, from traces at several assignments of the size symbols.

Capture says which sizes are symbols (`gm.meta["symbols"]`, `meta["sizes"]` of placeholders). Here the graph is traced
at sizes near those of the call, which no static size of the graph equals, and the traces are generalised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import fx

from argand.autograd.tracing.agreement import check_results, extrema, floats_of, keep_coincidences, rounds, told_apart
from argand.autograd.tracing.size_columns import MORE_ROWS, ROWS, chosen, in_step, moduli, two
from argand.autograd.tracing.trace import trace_inference
from argand.errors import AutogradError
from argand.graph.nodes.program import AtenProgram, InputSpec, TensorSpec
from argand.graph.sizes.expr import Expr, Sym, as_int, free_symbols
from argand.graph.sizes.fitting import Fitter
from argand.graph.sizes.relations import Relation, hold, require
from argand.graph.sizes.symbolic import Scalar, SymbolicTensor
from argand.graph.sizes.symbols import CONGRUENT, FUNCTIONS, SymbolTable
from argand.passes.generalise import NotGeneral, OperationsDiffer, divided, generalise, parts_of
from argand.passes.piecewise_sizes import follows_formulas

Prepare = Callable[[AtenProgram], AtenProgram]
Assignment = dict[Sym, Any]

_MAX_PINS = 4


def trace_dynamic(gm: fx.GraphModule, example_inputs: Sequence[Any], prepare: Prepare) -> AtenProgram:
    """A functional ATen program for every size that meets its `conditions`; those of the call do.

    Arguments:
        gm: a torch-level graph with `meta["symbols"]`.
        example_inputs: one value per placeholder.
        prepare: applied to each concrete trace before they are compared (the graph passes).

    Raises:
        NotGeneral: what runs depends on the sizes in a way that no expression describes.
        AutogradError: the graph cannot be traced.
    """
    return Tracing(gm, example_inputs, prepare).run()


class _TracesDiffer(OperationsDiffer):
    """They do so before the graph passes."""


class Tracing:
    """Traces of one graph at several assignments, and their generalisation.

    Arguments: as for `trace_dynamic`.
    """

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], prepare: Prepare) -> None:
        self.gm = gm
        self.examples = example_inputs
        self.prepare = prepare
        self.table: SymbolTable = gm.meta["symbols"]
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.readers = read_symbols(self.placeholders)
        self.inputs = [sym for sym in self.table.symbols if sym not in self.table.definitions]
        self.bends = False  # an operation may make the least of two sizes
        self.divides = False  # a number of the last program is a quotient or a remainder
        self.moduli = moduli(self._known())
        self.remain: Sequence[Relation] = ()  # conditions of all sizes that the graph is traced at
        self.unfitted = any(None in (node.meta.get("sizes") or ()) for node in gm.graph.nodes)  # of no formula
        self.traces: dict[tuple[tuple[Sym, Any], ...], tuple[AtenProgram, int, bool]] = {}
        self.programs: list[AtenProgram] = []  # those that are generalised
        unread = [sym for sym in self.inputs if sym not in self.readers]
        self.unused = frozenset(unread) - self._mentioned()
        for sym in unread:
            if sym not in self.unused:
                raise NotGeneral(f"{sym} is no size, stride or number of an input")

    def run(self) -> AtenProgram:
        """The program for the most symbols."""
        reason = ""  # not the error: its traceback refers to this frame, and that to the call's tensors
        for pinned in self._pins():
            differ = False
            tried: list[list[Assignment]] = []
            for kind, assignments in self._assignments(pinned):
                if assignments in tried or (kind == "remainders" and not differ):
                    continue
                tried.append(assignments)
                if differ and (kind in ("below", "probes") or (self.moduli and kind in ("congruent", "multiples"))):
                    continue  # sizes without common divisors will not agree either, and those of capture are large
                self.remain = self._remain(pinned) if kind == "remainders" else ()
                try:
                    return self._trace(assignments, pinned)
                except AutogradError as failed:
                    reason = reason or str(failed)
                    differ = differ or isinstance(failed, _TracesDiffer)
        raise NotGeneral(reason or "no other sizes are left to compare with")

    def _pins(self) -> Iterator[frozenset[Sym]]:
        """Symbols to leave constant: none, then one at a time."""
        yield frozenset()
        sizes = [sym for sym in self.inputs if self.table.kinds[sym] == "int" and sym not in self.unused]
        if 1 < len(sizes) <= _MAX_PINS:
            for sym in reversed(sizes):
                yield frozenset((sym,))

    def _mentioned(self) -> frozenset[Sym]:
        """The symbols that the graph's inputs depend on. A number that only the program's Python needs is none."""
        mentioned: set[Sym] = set()
        for node in self.placeholders:
            for value in (*(node.meta.get("sizes") or ()), *(node.meta.get("strides") or ()), node.meta.get("expr")):
                if isinstance(value, Expr):
                    mentioned.update(self.table.inputs(value))
        return frozenset(mentioned)

    # --- assignments

    def _assignments(self, pinned: frozenset[Sym]) -> Iterator[tuple[str, list[Assignment]]]:
        """Sets of sizes to trace at, the most general first."""
        taken = self._static_sizes()
        for kind in ("above", "remainders", "below", "congruent", "multiples"):
            if kind == "remainders" and not self._remain(pinned):
                continue
            columns: dict[Sym, list[Any]] = {}
            used = set(taken)
            for number, sym in enumerate(self.inputs):
                column = self._column(sym, kind, number, used, pinned, columns)
                if column is None:
                    break
                columns[sym] = column
                used.update(column)
            else:
                rows = self._bent(self._allowed(self._complete(columns), pinned), pinned)
                if self._apart(rows, pinned):
                    yield kind, rows
        if not pinned:
            # what capture itself probed with satisfies all that it knows of the sizes
            first, second, *rough = [dict(probe) for probe in self.table.probes]
            for probed in ([first, rough[0], rough[-1]], [first, second, dict(self.table.hints)]):
                if self._apart(probed, pinned):
                    yield "probes", probed

    def _apart(self, rows: list[Assignment], pinned: frozenset[Sym]) -> bool:
        """Whether each symbol has another value in each row (of few values, a wrong formula has them too), and none is
        a multiple of another."""
        varied = [[row[sym] for row in rows[:ROWS]] for sym in self.inputs if sym not in self.unused | pinned]
        if not rows or any(len(set(column)) < len(column) for column in varied):
            return False
        return len(rows) < 3 or not any(in_step(one, other) for one, other in combinations(varied, 2))

    def _allowed(self, rows: list[Assignment], pinned: frozenset[Sym]) -> list[Assignment]:
        """The rows, or others near the call's sizes, in which sizes are ordered as the program's guards demand."""
        sizes = self._sizes(pinned)
        allowed: list[Assignment] = []
        for row in rows:
            chooser = random.Random(repr(sorted((sym.name, value) for sym, value in row.items())))
            other: Assignment | None = row
            for _ in range(200):
                if other is not None and self._is_allowed(other):
                    if len(allowed) >= ROWS or self._apart([*allowed, other], pinned):
                        break
                other = self._near(row, sizes, chooser)
            else:
                return []
            allowed.append(other)
        return allowed

    def _is_allowed(self, row: Assignment) -> bool:
        return all(self.table.holds(each, row) is not False for each in self.table.relations if each.op != "eq")

    def _near(self, row: Assignment, sizes: Iterable[Sym], chooser: random.Random) -> Assignment | None:
        """A row with other numbers, near the call's sizes."""
        hints = {sym: int(self.table.hints[sym]) for sym in sizes}
        return self._row(row, {sym: chooser.randint(min(n, 2), 2 * abs(n) + 8) for sym, n in hints.items()})

    def _bent(self, rows: list[Assignment], pinned: frozenset[Sym]) -> list[Assignment]:
        """The rows, one of them for another in which what is a least or greatest number in the others, of two, is the
        other number, where there is such a one."""
        if not rows or told_apart(self.table, rows[:ROWS]) == len(extrema(self.table)):
            return rows
        chooser, sizes = random.Random(len(rows)), self._sizes(pinned)
        ways = [rows]
        for row in (*(self._near(rows[0], sizes, chooser) for _ in range(100)), *self._rough(pinned)):
            if row is not None and self._is_allowed(row):
                ways.append([*rows[: ROWS - 1], row, *rows[ROWS:]])
        allowed = (way for way in ways if way is rows or self._apart(way, pinned))
        return max(allowed, key=lambda way: told_apart(self.table, way[:ROWS]))

    def _complete(self, columns: dict[Sym, list[Any]]) -> list[Assignment]:
        assignments_made: list[Assignment] = []
        for k in range(MORE_ROWS):
            assignment: Assignment = {sym: column[k] for sym, column in columns.items()}
            for sym in self.table.definitions:
                assignment[sym] = self.table.evaluate(sym, assignment)
            assignments_made.append(assignment)
        return assignments_made

    def _column(
        self,
        sym: Sym,
        kind: str,
        number: int,
        used: set[int],
        pinned: frozenset[Sym],
        others: Mapping[Sym, list[Any]],
    ) -> list[Any] | None:
        """Values of one symbol, one per trace; None when its range has no room."""
        hint = self.table.hints[sym]
        if sym in pinned or sym in self.unused:
            return [hint] * MORE_ROWS
        if self.table.kinds[sym] == "float":
            probes = [probe[sym] for probe in self.table.probes]
            return [value * scale for scale in (1.0, 1.25, 1.5) for value in probes][:MORE_ROWS]
        if len({assignment[sym] < 0 for assignment in self.table.assignments}) > 1:
            return None  # of both signs: as capture probed, not near the call's number
        hint = int(hint)
        low = sym.minimum if sym.minimum is not None else min(hint - 1000, -1000)
        high = self.table.maximum.get(sym, max(4 * abs(hint) + 256, hint + 256))
        for turn in range(8):
            step = self.moduli.get(sym, 1)
            column = chosen(hint, max(low, 3) if low >= 0 else low, high, kind, number + 10 * turn, used, step)
            if column is None or not any(in_step(column, other) for other in others.values()):
                return column
        return None

    def _static_sizes(self) -> set[int]:
        """Numbers that mean something else in the graph."""
        static: set[int] = set()
        for node in self.gm.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                sizes = node.meta.get("sizes", tuple(value.shape))
                static.update(int(n) for n in sizes if isinstance(n, int))
        for tensor in (*self.gm.parameters(), *self.gm.buffers()):
            static.update(int(n) for n in tensor.shape)
        return static

    # --- one set

    def _remain(self, pinned: frozenset[Sym]) -> tuple[Relation, ...]:
        """Conditions: what the program takes remainders of leaves those of the call."""
        left = [(sym, step) for sym, step in self.moduli.items() if sym in self._sizes(pinned)]
        return tuple([Relation("eq", sym % step - int(self.table.hints[sym]) % step) for sym, step in left])

    def _trace(self, assignments: list[Assignment], pinned: frozenset[Sym]) -> AtenProgram:
        self.bends = False
        if self.unfitted:
            assignments = [*assignments[:ROWS], *self._rough(pinned)]
        quick = None if self.unfitted else self._from_two(assignments, pinned)
        if quick is not None:
            return quick
        rounds = False
        if not self.bends:
            program, rounds = self._generalised(assignments if self.unfitted else assignments[:ROWS], pinned)
        if self.bends or self.unfitted:
            return self._straight(assignments, pinned)
        if rounds and len(assignments) > ROWS and not self.unfitted:
            program, _ = self._generalised(assignments, pinned)
        return program

    def _from_two(self, assignments: list[Assignment], pinned: frozenset[Sym]) -> AtenProgram | None:
        """As `_generalised` from two traces; None where these do not tell, or an operation may bend."""
        sizes = self._sizes(pinned)
        if not sizes or self.table.definitions or "float" in self.table.kinds.values():
            return None
        if any(isinstance(expr, Expr) and expr.has_divmod for expr in self._known()):
            return None
        if not two([[int(row[sym]) for row in assignments] for sym in sizes]):
            return None
        try:
            program, _ = self._generalised(assignments[:2], pinned)
        except NotGeneral as failed:
            if isinstance(failed, _TracesDiffer) or (isinstance(failed, OperationsDiffer) and not self.bends):
                raise  # more sizes will not make them equal; those in another order might
            return None
        return None if self.bends or self.divides else program

    def _straight(self, assignments: list[Assignment], pinned: frozenset[Sym]) -> AtenProgram:
        """As `_generalised` for graphs whose numbers may be least or greatest ones of sizes: between the traces, they
        are what the formulas say; beyond, only where traces at small sizes and in another order agree."""
        hints: Assignment = dict(self.table.hints)
        sizes = self._sizes(pinned)
        beyond = [row for row in (self._reversed(assignments, sizes), self._small(sizes)) if row is not None]
        if len(beyond) == 2:
            try:
                return self._generalised([*assignments, hints, *beyond], pinned)[0]
            except AutogradError:
                pass  # then for sizes like those of the call
        rows = [*(self._in_order(row, sizes) for row in assignments), hints]
        domain: list[Expr] = [sym - min(int(row[sym]) for row in rows) for sym in sizes]
        ranked = sorted(sizes, key=lambda sym: hints[sym])
        for small, large in pairwise(ranked):
            domain.append(large - small - min(int(row[large]) - int(row[small]) for row in rows))
        return self._generalised(rows, pinned, domain)[0]

    def _rough(self, pinned: frozenset[Sym]) -> Iterator[Assignment]:
        """What capture probed with, far from the call: near it, a size that nothing describes may look constant."""
        for probe in self.table.probes[CONGRUENT:]:
            row = self._row(probe, {sym: int(self.table.hints[sym]) for sym in pinned})
            if row is not None:
                yield row

    def _sizes(self, pinned: frozenset[Sym]) -> list[Sym]:
        """The integers that vary."""
        fixed = pinned | self.unused
        return [sym for sym in self.inputs if self.table.kinds[sym] == "int" and sym not in fixed]

    def _row(self, base: Assignment, values: Mapping[Sym, int]) -> Assignment | None:
        """An assignment of other values; None where one is out of its range."""
        for sym, value in values.items():
            least = sym.minimum if sym.minimum is not None else value
            if not least <= value <= self.table.maximum.get(sym, value):
                return None
        row: Assignment = {sym: values.get(sym, base[sym]) for sym in self.inputs}
        try:
            for sym in self.table.definitions:
                row[sym] = self.table.evaluate(sym, row)
        except (ArithmeticError, ValueError):
            return None
        return row

    def _reversed(self, assignments: list[Assignment], sizes: list[Sym]) -> Assignment | None:
        """Larger sizes, the smallest of the call now the largest."""
        hints = self.table.hints
        top = max([int(row[sym]) for row in assignments for sym in sizes] + [0, *self._static_sizes()])
        ranked = sorted(sizes, key=lambda sym: -hints[sym])
        return self._row(assignments[0], {sym: top + 3 + 7 * i for i, sym in enumerate(ranked)})

    def _small(self, sizes: list[Sym]) -> Assignment | None:
        hints = self.table.hints
        ranked = sorted(sizes, key=lambda sym: hints[sym])
        return self._row(hints, {sym: 2 + i for i, sym in enumerate(ranked) if hints[sym] > 0})

    def _in_order(self, row: Assignment, sizes: list[Sym]) -> Assignment:
        """The same values, in the order that those of the call have."""
        hints = self.table.hints
        ranked = sorted(sizes, key=lambda sym: hints[sym])
        values = sorted(int(row[sym]) for sym in sizes)
        return self._row(row, dict(zip(ranked, values))) or row

    def _generalised(
        self, assignments: list[Assignment], pinned: frozenset[Sym], domain: Sequence[Expr] = ()
    ) -> tuple[AtenProgram, bool]:
        """The program, and whether it divides sizes. `domain`: must not be negative."""
        self.programs = []
        if any(rounds(self.table, node, assignments) for node in self.gm.graph.nodes):
            raise NotGeneral("the numbers that a tensor is made of are the same in all traces")
        count = 0
        for row, assignment in enumerate(assignments):
            key = tuple(assignment.items())
            trace = self.traces.pop(key, None) or self._prepared(assignment)
            if row:  # the first one becomes the program for all sizes
                self.traces[key] = trace
            program, traced, bends = trace
            self.bends = self.bends or bends
            if row and traced != count:
                raise _TracesDiffer("how many operations run depends on the sizes")
            count = traced
            self.programs.append(program)
            if len(program.graph.nodes) != len(self.programs[0].graph.nodes):
                raise OperationsDiffer("the number of operations depends on the sizes")
        fitter = Fitter([self._numbers(assignment) for assignment in assignments], lines=len(assignments) >= ROWS)
        floats = floats_of(self.table, self._known(), self.unused, assignments)
        conditions: dict[Relation, None] = dict.fromkeys(self.remain)
        for expr in self._known():
            fitter.learn(expr)
            if (
                isinstance(expr, Expr)
                and as_int(expr) is None
                and not (self.table.inputs(expr) <= pinned or self.table.inputs(expr) & self.unused)
            ):
                self._may_vary(expr, assignments, conditions)
        keep_coincidences(self.table, fitter.assignments, self._known(), conditions)
        for sym in pinned:
            conditions[Relation("eq", sym - int(self.table.hints[sym]))] = None
        if not all(require(conditions, bound) for bound in domain):
            raise NotGeneral("the sizes of this call are a special case")
        program = generalise(self.programs, fitter, floats, conditions, self.table.hints)
        hints = self._hints(conditions)
        if not hold(conditions, self._hints(conditions, assignments[0]) if self.table.counts else hints):
            raise NotGeneral("the sizes of this call are a special case")
        check_results(self.gm, program, hints)
        attach_scalars(program, list(conditions), self)
        self.divides = fitter.divides
        return program, fitter.rounds

    def _may_vary(self, expr: Expr, assignments: list[Assignment], conditions: dict[Relation, None]) -> None:
        """A size that has one value in all traces (a remainder, say) is a constant of the program: of no other call."""
        values = {self.table.evaluate(expr, assignment) for assignment in assignments}
        symbols = free_symbols(expr)
        if len(values) == 1 and all(self.table.kinds[sym] == "int" for sym in symbols):
            conditions[Relation("eq", expr - int(values.pop()))] = None

    def _numbers(self, assignment: Assignment) -> dict[Sym, int]:
        return {
            sym: value for sym, value in assignment.items() if self.table.kinds[sym] == "int" and sym not in self.unused
        }

    def _known(self) -> Iterator[Any]:
        for node in self.gm.graph.nodes:
            yield from node.meta.get("sizes", ())
            yield from node.meta.get("strides", ())
            if isinstance(node.meta.get("expr"), Expr):
                yield node.meta["expr"]

    def _hints(self, conditions: Mapping[Relation, None], row: Assignment | None = None) -> dict[str, int]:
        env = {sym.name: value for sym, value in (row or self.table.hints).items()}
        for condition in conditions:
            for sym in condition.symbols:
                if sym.name not in env:
                    base, factor = parts_of(sym)
                    env[sym.name] = env[base] // factor
        return env  # type: ignore[return-value]  # floats never occur in conditions

    def _prepared(self, assignment: Assignment) -> tuple[AtenProgram, int, bool]:
        """A trace after the graph passes, how many operations it had before, and whether one of them may bend."""
        program = self._concrete(assignment)
        bends, traced = not follows_formulas(program.graph), len(program.graph.nodes)
        return self.prepare(program), traced, bends

    def _concrete(self, assignment: Assignment) -> AtenProgram:
        """The graph traced at one assignment.

        Raises:
            AutogradError: it cannot be, whatever the reason: these sizes are not the call's.
        """
        try:
            return self._traced(*self._arguments(assignment))
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            text = str(error).partition("\n")[0]
            raise NotGeneral(f"at other sizes tracing raises {type(error).__name__}: {text}") from error

    def _arguments(self, assignment: Assignment) -> tuple[list[Any], dict[int, TensorSpec]]:
        """The graph's arguments at one assignment, and the layouts of those that are tensors."""
        values: list[Any] = []
        layouts: dict[int, TensorSpec] = {}
        for index, (node, example) in enumerate(zip(self.placeholders, self.examples)):
            values.append(example)
            if not isinstance(example, torch.Tensor):
                expr = node.meta.get("expr")
                if isinstance(expr, Expr):
                    values[-1] = self.table.evaluate(expr, assignment)
                continue
            sizes, strides = node.meta.get("sizes"), node.meta.get("strides")
            if sizes is None or strides is None:
                continue
            layouts[index] = TensorSpec(
                tuple([self._number(n, assignment) for n in sizes]),
                tuple([self._number(n, assignment) for n in strides]),
                int(example.storage_offset()),
                example.dtype,
                example.device,
                example.requires_grad,
            )
        return values, layouts

    def _traced(self, values: list[Any], layouts: dict[int, TensorSpec]) -> AtenProgram:
        return trace_inference(self.gm, values, layouts=layouts)

    def _number(self, value: Any, assignment: Assignment) -> int:
        return int(self.table.evaluate(value, assignment))


def read_symbols(placeholders: Sequence[fx.Node]) -> dict[Sym, str]:
    """Python text that reads each symbol from the call's `args`."""
    readers: dict[Sym, str] = {}
    for index, node in enumerate(placeholders):
        expr = node.meta.get("expr")
        if isinstance(expr, Sym):
            readers.setdefault(expr, f"args[{index}]")
        for dim, size in enumerate(node.meta.get("sizes") or ()):
            if isinstance(size, Sym):
                readers.setdefault(size, f"args[{index}].size({dim})")
    for index, node in enumerate(placeholders):
        for dim, stride in enumerate(node.meta.get("strides") or ()):
            if isinstance(stride, Sym):
                readers.setdefault(stride, f"args[{index}].stride({dim})")
    return readers


# ---------------------------------------------------------------------- scalars of the program


def attach_scalars(program: AtenProgram, conditions: list[Relation], tracing: Tracing) -> None:
    """Give the program its conditions, and a placeholder for each symbol that it needs."""
    used = symbols_in(program)
    conditions = list(dict.fromkeys([*conditions, *_in_range(program, tracing)]))
    program.conditions = conditions
    scalars = _Scalars(tracing)
    for condition in conditions:
        for sym in condition.symbols:
            scalars.need(sym)
    if any(spec.kind == "tangent" for spec in program.inputs):  # the graph itself may run again for its gradients
        used |= {sym for sym, reader in tracing.readers.items() if reader.endswith("]") and sym not in tracing.unused}
    for sym in sorted(used, key=lambda s: s.name):
        scalars.need(sym)
    program.scalars = list(scalars.scalars.values())
    graph = program.graph
    last = program.placeholders[-1] if program.placeholders else None
    for sym in sorted(used, key=lambda s: s.name):
        with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
            last = graph.placeholder(sym.name)
        if last.name != sym.name:
            raise NotGeneral(f"the graph has a value named {sym.name}")
        last.meta.update(val=sym)
        spec = TensorSpec((), (), 0, torch.int64, torch.device("cpu"))
        program.inputs.append(InputSpec(last.name, "scalar", -1, spec))


def _in_range(program: AtenProgram, tracing: Tracing) -> Iterator[Relation]:
    """What the program computes of Python's integers fits into the 64 bits that kernels have. Sizes always do.

    Sums and products may leave the range on the way, for they come back; quotients and remainders may not.
    """
    sizes = {sym for sym, reader in tracing.readers.items() if not reader.endswith("]")}
    seen: set[Expr] = set()
    pending: list[Any] = [(node.args, tuple(node.kwargs.values())) for node in program.graph.nodes]
    while pending:
        at = pending.pop()
        if isinstance(at, (tuple, list)):
            pending += at
        elif isinstance(at, Expr) and at not in seen and not free_symbols(at) <= sizes:
            seen.add(at)
            atoms = {atom for monomial, _ in at.poly for atom in monomial}
            pending += [part for atom in atoms for part in atom.args]
            kinds = {tracing.table.kinds.get(sym) for sym in free_symbols(at)}
            given = isinstance(at, Sym) and at in tracing.readers  # guarded where the call's numbers are read
            if kinds == {"int"} and not given:
                yield Relation("ge", at + 2**63)
                yield Relation("ge", 2**63 - 1 - at)


class _Scalars:
    """Code that computes symbols, operands first."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self.table = tracing.table
        self.scalars: dict[Sym, Scalar] = {}

    def need(self, sym: Sym) -> None:
        if sym in self.scalars:
            return
        reader = self.tracing.readers.get(sym)
        if reader is not None:
            self.scalars[sym] = Scalar(sym, reader, self.table.kinds[sym] == "float", self.table.hints[sym])
            return
        definition = self.table.definitions.get(sym)
        if definition is None:
            base, factor = parts_of(sym)
            whole = next(s for s in self.table.symbols if s.name == base)
            self.need(whole)
            self.scalars[sym] = Scalar(sym, f"{base} // {factor}", False, int(self.table.hints[whole]) // factor)
            return
        for arg in definition.args:
            if isinstance(arg, Expr):
                for inner in sorted(free_symbols(arg), key=lambda s: s.name):
                    self.need(inner)
        function = f"{definition.op}_number"
        source = f"{function}({', '.join(_text(arg) for arg in definition.args)})"
        is_float = self.table.kinds[sym] == "float"
        self.scalars[sym] = Scalar(sym, source, is_float, self.table.hints[sym], {function: FUNCTIONS[definition.op]})


def _text(value: Any) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    return repr(value)


def symbols_in(program: AtenProgram) -> set[Sym]:
    """Every symbol that the program's graph and results mention."""
    symbols: set[Sym] = set()

    def visit(tree: Any) -> None:
        if isinstance(tree, Expr):
            if as_int(tree) is None:
                symbols.update(free_symbols(tree))
        elif isinstance(tree, SymbolicTensor):
            visit((tree.shape, tree.strides, tree.offset))
        elif isinstance(tree, (tuple, list)):
            for item in tree:
                visit(item)

    for node in program.graph.nodes:
        visit(node.args)
        visit(tuple(node.kwargs.values()))
        visit(node.meta.get("val"))
    for output in (*program.outputs, *[leaf.data for leaf in program.leaves if leaf.data is not None]):
        visit(output.value)
        if output.view is not None:
            visit((output.view.size, output.view.stride, output.view.offset))
    return symbols


__all__ = ["NotGeneral", "divided", "trace_dynamic"]
