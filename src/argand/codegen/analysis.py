"""What a stage's statements depend on, and at which loop each belongs.

In: a `schedule.kernel.Stage`. Out: `StageFacts`: the loop variables that each statement depends on (through
arguments, indices, `indirect` results and masks), and whether it comes after the reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

import torch

from argand.graph.sizes.expr import (
    Const,
    Expr,
    Mod,
    Simplifier,
    Var,
    as_int,
    coefficient,
    evaluate,
    free_symbols,
    free_vars,
)
from argand.graph.sizes.expr_nodes import from_poly
from argand.graph.sizes.hints import likely
from argand.ir.loops import LoopBlock, LoopBody, Value, with_nested
from argand.quick_dataclasses import dataclass

Deps = frozenset[Var]
_HINT = 256  # iterations assumed of a loop whose size is known only at run time


@dataclass(slots=True)
class StageFacts:
    """Facts about one stage.

    Arguments:
        deps: the loop variables that each value depends on. For a value after the reductions: every pointwise
        variable.
        after: values that depend on a reduction's result; they run once per point.
        indirect: variable of an `indirect` statement -> that statement.
        reductions, scans: these statements, in order.
        statements: of the body, in order.
        registers: buffers that hold one value per point of the kernel's outer loops.
        outer: variables of those loops.
    """

    body: LoopBody
    deps: dict[Value, Deps] = field(default_factory=dict)
    after: set[Value] = field(default_factory=set)
    indirect: dict[Var, Value] = field(default_factory=dict)
    reductions: list[Value] = field(default_factory=list)
    statements: list[Value] = field(default_factory=list)
    scans: list[Value] = field(default_factory=list)
    registers: frozenset[str] = frozenset()
    outer: Deps = frozenset()

    def index_deps(self, index: Expr) -> Deps:
        """The loop variables that an index expression depends on."""
        variables: set[Var] = set()
        for var in free_vars(index):
            source = self.indirect.get(var)
            if source is None:
                variables.add(var)
            else:
                variables |= self.deps[source]
        return frozenset(variables)


def analyse(body: LoopBody, registers: frozenset[str] = frozenset(), outer: Iterable[Var] = ()) -> StageFacts:
    """Find the facts of one stage's body, given the kernel's registers and outer variables."""
    facts = StageFacts(body, registers=registers, outer=frozenset(outer))
    point = frozenset(body.vars)
    everything = point | frozenset(body.reduction_vars)
    _visit(facts, body.statements, frozenset(), point, everything)
    facts.statements = list(body.statements)
    return facts


def _visit(facts: StageFacts, statements: Iterable[Value], mask: Deps, point: Deps, everything: Deps) -> None:
    for value in statements:
        deps: set[Var] = set(mask)
        after = False
        if value.op == "masked":
            condition, block = value.args[0], value.args[1]
            inner = mask | facts.deps[condition]
            _visit(facts, block.statements, inner, point, everything)
        for arg in _operands(value):
            if isinstance(arg, Value):
                deps |= facts.deps[arg]
                after = after or arg in facts.after
            else:
                deps |= facts.index_deps(arg)
                after = after or any(facts.indirect[v] in facts.after for v in free_vars(arg) if v in facts.indirect)
        if value.op in ("load", "store") and value.args[0] in facts.registers:
            deps |= facts.outer
        if value.op == "reduction":
            facts.reductions.append(value)
            deps, after = set(point), True
        elif value.op == "scan":
            facts.scans.append(value)
            deps = set(everything)
        elif after:
            deps = set(point) | (deps - everything)
        elif value.op == "store" and value.args[3] is not None:
            deps = set(everything if deps - point else point)
        facts.deps[value] = frozenset(deps)
        if after:
            facts.after.add(value)
        if value.op == "indirect":
            facts.indirect[Var(f"i{value.id}")] = value


def _operands(value: Value) -> list[Value | Expr]:
    """Values and index expressions that a statement reads (a block's result stands for the block)."""
    operands: list[Value | Expr] = []
    for arg in value.args:
        if isinstance(arg, (Value, Expr)):
            operands.append(arg)
        elif isinstance(arg, LoopBlock):
            operands.append(arg.result)
            operands.extend(arg.statements)
    return operands


def is_half(dtype: torch.dtype) -> bool:
    """Stored in 16 bits and computed in 32."""
    return dtype in (torch.bfloat16, torch.float16)


def has_spare_bits(value: Value) -> bool:
    """Whether sums of such values are the same, but for rounding that nobody sees, in whatever order they are made."""
    wide = value.dtype is torch.float64 and value.op == "to_dtype" and value.args[0].dtype is not torch.float64
    return wide or not value.dtype.is_floating_point


def hint(size: Expr) -> int:
    """The loop size, or a guess when it is a symbol."""
    known = as_int(size)
    if known is not None:
        return known
    env = {symbol.name: likely(symbol.name, max(_HINT, symbol.minimum or 0)) for symbol in free_symbols(size)}
    return max(int(evaluate(size, env)), 1)


def store_pair(facts: StageFacts, value: Value) -> tuple[Value, Value] | None:
    """A store and the one beside it in memory, in the order of the stage; None where it has no such neighbour."""
    buffer, index, _, mode = value.args
    if mode is not None or any(each.op == "load" and each.args[0] == buffer for each in with_nested(facts.statements)):
        return None
    for other in facts.statements:
        if other.op != "store" or other is value or other.args[0] != buffer or other.args[3] is not None:
            continue
        alike = facts.deps[other] == facts.deps[value] and (other in facts.after) == (value in facts.after)
        if alike and as_int(other.args[1] - index) in (-1, 1):
            return (value, other) if value.id < other.id else (other, value)
    return None


def lane_stride(facts: StageFacts, index: Expr, var: Var, lanes: int) -> Expr | None:
    """How far apart in memory neighbouring lanes of `var` are; None when it is not one distance.

    `x // c` and `x % c` count as linear when a vector, which starts at a multiple of `lanes`, never crosses a
    multiple of c.
    """
    for other in free_vars(index):
        source = facts.indirect.get(other)
        if source is not None and var in facts.deps[source]:
            return None
    step = coefficient(index, var)
    if step is not None or not index.has_divmod or lanes == 1:
        return step
    return _piecewise_stride(index, var, lanes)


def _piecewise_stride(index: Expr, var: Var, lanes: int) -> Expr | None:
    total: Expr = Const(0)
    for monomial, scale in index.poly:
        holders = [atom for atom in monomial if var in atom.free]
        if not holders:
            continue
        if len(holders) > 1:
            return None
        atom = holders[0]
        step = Const(1) if atom is var else _divmod_stride(atom, var, lanes)
        if step is None:
            return None
        rest: Expr = Const(scale)
        for other in monomial:
            if other is not atom:
                rest = rest * other
        total = total + rest * step
    return total


def _divmod_stride(atom: Expr, var: Var, lanes: int) -> Expr | None:
    """Stride of `left // right` (0) or `left % right` (that of left) within an aligned vector."""
    left, right = atom.args
    divisor = as_int(right)
    if divisor is None or divisor % lanes or coefficient(left, var) != 1:
        return None
    for monomial, scale in left.poly:
        if monomial == (var,):
            continue
        if scale % lanes:
            return None  # the vector may start in the middle of a block
    return Const(1) if isinstance(atom, Mod) else Const(0)


def apart(facts: StageFacts, index: Expr, var: Var, sizes: Mapping[Var, Expr]) -> bool:
    """Whether two points that differ in `var` certainly have different values of `index`, whatever they look up."""
    step = coefficient(index, var)
    distance = as_int(step) if step is not None else None
    if distance is None or distance < 1:
        return False
    rest = index - distance * var
    count = as_int(sizes[var])
    if count is not None:  # what moves it by whole rounds of `var` changes nothing
        rest = from_poly({m: scale for m, scale in rest.poly if not m or scale % (distance * count)})
    looked_up = {name: value.args[1] for name, value in facts.indirect.items()}
    return Simplifier({**sizes, **looked_up}).between(rest, Const(distance))
