"""Accumulators: how each kind of reduction starts, steps and ends.

In: a `reduction` statement. Out: C++ lines. Along lanes, every lane has its own accumulator, and `fold_*` combines
the lanes at the end. Long sums of floats are cut into blocks whose results are added up in a wider (or second)
accumulator, so that the error does not grow with the length.
"""

from __future__ import annotations

import torch

from argand.codegen.cpp.statements import Printer
from argand.codegen.cpp.types import element, limit, number, vector_type
from argand.graph.sizes.expr import Expr, Var, coefficient, sum_of, to_c
from argand.ir.loops import Value
from argand.quick_dataclasses import dataclass

_STEP = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "maximum({1}, {0})",
    "min": "minimum({1}, {0})",
    "any": "logical_or({0}, {1})",
}
_FOLD = {"sum": "fold_sum", "prod": "fold_prod", "max": "fold_max", "min": "fold_min", "any": "fold_any"}


BLOCK = 128  # additions one after the other before a float sum is flushed


@dataclass(slots=True)
class Span:
    """The iterations of one loop: from `begin` to `end`, how many that is when known, and how many at most."""

    begin: str
    end: str
    count: int | None
    most: int | None = None


def is_arg(kind: str) -> bool:
    """Whether the reduction finds a position."""
    return kind in ("argmax", "argmin")


@dataclass(slots=True)
class Accumulator:
    """One reduction in one loop nest.

    Arguments:
        value: the statement.
        lanes: of the accumulator; 1 is a scalar.
        fold: lanes are combined at the end (they run along the reduction).
        cascade: results of blocks are added up in a second accumulator.
        unroll: how many independent accumulators there are.
        wide_index: positions need 64 bits.
        jam: the `unroll` accumulators belong to different points; they are not combined.
    """

    value: Value
    lanes: int
    fold: bool
    cascade: bool = False
    unroll: int = 1
    wide_index: bool = True
    jam: bool = False

    @property
    def kind(self) -> str:
        return str(self.value.args[0])

    @property
    def dtype(self) -> torch.dtype:
        """Of the accumulated value."""
        dtype: torch.dtype = self.value.args[1].dtype
        return dtype

    @property
    def type(self) -> str:
        """C++ type of one accumulator."""
        return vector_type(self.dtype, self.lanes) if self.lanes > 1 else self.scalar_type

    @property
    def scalar_type(self) -> str:
        """C++ type of one lane."""
        return element(self.dtype).name

    @property
    def index_type(self) -> str:
        """C++ type of the positions that belong to one accumulator."""
        name = "i64" if self.wide_index else "i32"
        return f"{name}x{self.lanes}" if self.lanes > 1 else name

    @property
    def total_type(self) -> str:
        """C++ type of the second accumulator of a cascade."""
        return f"f64x{self.lanes}" if self.lanes > 1 and not self.fold else "f64"

    def _start(self) -> str:
        kind = self.kind
        if kind in ("sum", "prod"):
            initial: float | int | bool = 1 if kind == "prod" else 0
        elif kind == "any":
            initial = False
        else:
            initial = limit(self.dtype, low=kind in ("max", "argmax"))
        return self._spread(number(initial, self.dtype))

    def _spread(self, text: str) -> str:
        if self.lanes == 1:
            return f"{element(self.dtype).name}({text})"
        return f"{'splat_mask' if self.dtype == torch.bool else 'splat'}<{self.type}>({text})"

    def name(self, unrolled: bool = False) -> str:
        """The accumulator that a step adds to."""
        if self.unroll == 1:
            return f"acc{self.value.id}"
        return f"acc{self.value.id}[{'u' if unrolled else '0'}]"

    def declare_total(self, printer: Printer) -> None:
        """Before the blocks."""
        if self.cascade:
            zero = "0" if self.total_type == "f64" else f"splat<{self.total_type}>(0)"
            if self.jam:
                zeros = ", ".join([zero] * self.unroll)
                printer.out.line(f"{self.total_type} total{self.value.id}[{self.unroll}] = {{{zeros}}};")
            else:
                printer.out.line(f"{self.total_type} total{self.value.id} = {zero};")

    def declare(self, printer: Printer) -> None:
        """Before the (innermost block of the) reduction loops."""
        start = self._start()
        if self.unroll > 1:
            start = "{" + ", ".join([start] * self.unroll) + "}"
            printer.out.line(f"{self.type} acc{self.value.id}[{self.unroll}] = {start};")
        else:
            printer.out.line(f"{self.type} acc{self.value.id} = {start};")
        if is_arg(self.kind):
            zero = "0" if self.lanes == 1 else f"splat<{self.index_type}>(0)"
            printer.out.line(f"{self.index_type} at{self.value.id} = {zero};")

    def step(self, printer: Printer, position: Expr, unrolled: bool) -> None:
        """For every point of the reduction loops; `position` counts them row-major."""
        argument: Value = self.value.args[1]
        vector = self.lanes > 1
        lanes = printer.lanes
        text = printer.operand(argument, vector, self.dtype)
        name = self.name(unrolled)
        tail = self.fold and lanes.tail
        if is_arg(self.kind):
            self._step_arg(printer, text, position)
            return
        if self.kind == "any" and vector:
            text = f"convert<{self.type}>({text})"
        stepped = _STEP[self.kind].format(name, text)
        if not vector and element(self.dtype).size < 4 and self.dtype != torch.bool:
            stepped = f"{element(self.dtype).name}({stepped})"
        if tail:
            mask = f"tail_mask<i{8 * element(self.dtype).size}x{self.lanes}>({lanes.tail})"
            choose = f"where_bool<{self.type}>" if self.dtype == torch.bool else "where"
            stepped = f"{choose}({mask}, {self.type}({stepped}), {name})"
        printer.out.line(f"{name} = {stepped};")

    def _step_arg(self, printer: Printer, text: str, position: Expr) -> None:
        vector, lanes, ident = self.lanes > 1, printer.lanes, self.value.id
        better = f"arg_{self.kind[3:]}_better({text}, acc{ident})"
        out = printer.out
        if not vector:
            with out.block(f"if ({better})"):
                out.line(f"acc{ident} = {text};")
                out.line(f"at{ident} = {to_c(position)};")
            return
        if self.fold and lanes.tail:
            mask = f"tail_mask<i{8 * element(self.dtype).size}x{self.lanes}>({lanes.tail})"
            better = f"logical_and({better}, {mask})"
        if self.fold:
            assert lanes.var is not None
            step = coefficient(position, lanes.var)
            assert step is not None  # it is linear
            here = f"iota<{self.index_type}>({to_c(position)}, {to_c(step)})"
        else:
            here = f"splat<{self.index_type}>({to_c(position)})"
        out.line(f"const auto better{ident} = {better};")
        out.line(f"at{ident} = where(better{ident}, {here}, at{ident});")
        out.line(f"acc{ident} = where(better{ident}, {text}, acc{ident});")

    def _combined(self) -> str:
        """The unrolled accumulators as one."""
        if self.unroll == 1:
            return f"acc{self.value.id}"
        if self.jam:
            return f"acc{self.value.id}[u]"
        names = [f"acc{self.value.id}[{index}]" for index in range(self.unroll)]
        while len(names) > 1:
            names = [f"({_STEP[self.kind].format(a, b)})" for a, b in zip(names[::2], names[1::2])]
        return names[0]

    def flush(self, printer: Printer) -> None:
        """After each block of a cascade."""
        if self.cascade:
            text = self._combined()
            text = f"fold_sum({text})" if self.fold else f"convert<{self.total_type}>({text})"
            if self.jam:
                printer.out.line(f"for (int u = 0; u < {self.unroll}; ++u) total{self.value.id}[u] += {text};")
            else:
                printer.out.line(f"total{self.value.id} += {text};")

    def result(self, printer: Printer) -> str:
        """The reduction's result, after the loops; for a position, after the line that this prints."""
        ident = self.value.id
        if self.cascade:
            total = f"total{ident}[u]" if self.jam else f"total{ident}"
            if self.total_type == "f64":
                return f"{element(self.dtype).name}({total})"
            return f"convert<{self.type}>({total})"
        if is_arg(self.kind):
            if self.fold:
                name = element(self.dtype).name
                printer.out.line(f"{name} best{ident}; i64 index{ident};")
                better = f"[](auto a, auto b) {{ return bool(arg_{self.kind[3:]}_better(a, b)); }}"
                printer.out.line(f"fold_arg(acc{ident}, at{ident}, best{ident}, index{ident}, {better});")
                return f"index{ident}"
            return f"convert<i64x{self.lanes}>(at{ident})" if self.lanes > 1 else f"i64(at{ident})"
        text = self._combined()
        return f"{_FOLD[self.kind]}({text})" if self.fold else text

    def best(self) -> str:
        """After `result` of a position: the extreme value itself."""
        return f"best{self.value.id}" if self.fold else f"acc{self.value.id}"


def position_of(variables: tuple[Var, ...], sizes: tuple[Expr, ...]) -> Expr:
    """Row-major number of a point of the reduction loops."""
    terms: list[Expr] = []
    for index, var in enumerate(variables):
        term: Expr = var
        for size in sizes[index + 1 :]:
            term = term * size
        terms.append(term)
    return sum_of(terms)
