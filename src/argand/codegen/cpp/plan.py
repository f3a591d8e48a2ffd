"""Decides how a stage's loops run: their order, which one runs over vector lanes, how many lanes.

In: a stage's facts. Out: a `StagePlan`. Every loop variable (and none) is tried as the vector variable; a cost model
counts what is executed: statements at the loop where they belong, a vector at a time when contiguous, lane by lane
when not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from argand.codegen.analysis import StageFacts, apart, hint, lane_stride, store_pair
from argand.codegen.cpp import overrides
from argand.codegen.cpp.crossings import crossing
from argand.codegen.cpp.integers import integers_of
from argand.codegen.cpp.reduce import is_arg
from argand.codegen.cpp.stage_plan import StagePlan
from argand.codegen.cpp.tile import tile_variable
from argand.codegen.cpp.types import element
from argand.graph.sizes.expr import Expr, Var, as_int, free_vars
from argand.ir.loops import Value, with_nested
from argand.ir.operations import DIVISION, ELEMENTARY, INTEGER_DIVISIONS, cost

# Functions of the prelude that have no vector code.
_PER_LANE = {
    *("pow", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "erfc"),
}
_FREE = frozenset(("constant", "reduction"))


def sizes_of(facts: StageFacts) -> dict[Var, Expr]:
    """Size of every loop variable of the stage."""
    body = facts.body
    return {**dict(zip(body.vars, body.sizes)), **dict(zip(body.reduction_vars, body.reduction_sizes))}


def plan_stage(facts: StageFacts, own: Sequence[Var], vector_bytes: int, forced: Var | None = None) -> StagePlan:
    """Choose how a stage runs.

    Arguments:
        own: the stage's own pointwise variables.
        vector_bytes: width of a vector register; 0 makes scalar code.
        forced: a variable of an outer loop that already runs over lanes.
    """
    sizes = sizes_of(facts)
    narrow, inside, near = integers_of(facts, sizes)
    reduce = tuple(facts.body.reduction_vars)
    scalar = StagePlan(tuple(own), reduce, sizes, None, 1, narrow, inside, near)
    scalar.cost = scalar.work = _cost(facts, scalar)
    if forced is not None:
        return _forced(scalar, forced)
    if vector_bytes == 0 or uses_replaced(facts):
        return scalar
    best = scalar
    pinned = _order_matters(facts)
    for var in dict.fromkeys((*own[-1:], *reduce[-1:], *own, *reduce)):
        if pinned and var in own[:-1]:
            continue
        for width in (vector_bytes, vector_bytes // 2) if _divided_by_few(facts, var) else (vector_bytes,):
            candidate = _candidate(facts, scalar, var, width)
            if candidate is not None and candidate.cost < best.cost:
                best = candidate
    return best


def _divided_by_few(facts: StageFacts, var: Var) -> bool:
    """Whether a vector may be longer than rows that are read along `var`."""
    loads = [
        value.args[1] for value in with_nested(facts.statements) if value.op == "load" and var in facts.deps[value]
    ]
    return any(index.has_divmod and crossing(index, var, 8, "") is not None for index in loads)


def uses_replaced(facts: StageFacts) -> bool:
    """Whether a statement's C++ is the user's: written for scalars."""
    return any(overrides.known(v.op) and overrides.replaced(v.op) for v in with_nested(facts.statements))


def _order_matters(facts: StageFacts) -> bool:
    """Whether points may write to one place: then their order is kept."""
    for value in facts.statements:
        if value.op == "store" and (value.args[3] is not None or any(v in facts.indirect for v in value.args[1].free)):
            return True
    return False


def _last_wins(facts: StageFacts, var: Var, sizes: dict[Var, Expr]) -> bool:
    """Whether points that differ in `var` may write to one place, where what the last of them writes stays."""
    return any(
        value.op == "store"
        and value.args[3] is None
        and any(v in facts.indirect for v in value.args[1].free)
        and not apart(facts, value.args[1], var, sizes)
        for value in facts.statements
    )


def _candidate(facts: StageFacts, scalar: StagePlan, var: Var, vector_bytes: int) -> StagePlan | None:
    lanes = lanes_for(facts, var, vector_bytes, scalar)
    if lanes < 2 or (var not in scalar.point[-1:] and _last_wins(facts, var, scalar.sizes)):
        return None
    ordered = facts.scans or any(is_arg(value.args[0]) for value in facts.reductions)
    if ordered and var in scalar.reduce[:-1]:  # they take the points in order
        return None
    point = tuple(v for v in scalar.point if v is not var) + ((var,) if var in scalar.point else ())
    reduce = tuple(v for v in scalar.reduce if v is not var) + ((var,) if var in scalar.reduce else ())
    plan = replace(scalar, point=point, reduce=reduce, vector=var, lanes=lanes, cost=0.0)
    tiled = tile_variable(facts, plan) if not _order_matters(facts) else None
    if tiled is not None:
        along, plan.transposed = tiled
        plan.point = (*(v for v in point if v not in (along, var)), along, var)
    plan.cost = _cost(facts, plan)
    return plan


def _forced(scalar: StagePlan, var: Var) -> StagePlan:
    """All of the stage runs inside a vector loop over an outer variable; the kernel decides how many lanes."""
    return replace(scalar, vector=var, lanes=0)


def lanes_for(facts: StageFacts, var: Var, vector_bytes: int, plan: StagePlan) -> int:
    """Lanes such that no vector is wider than a register; fewer when the loop is shorter, 1 when it is much shorter."""
    widest, narrow = 1, plan.narrow
    for value in with_nested(facts.statements):
        if value.op in ("constant",) or var not in facts.deps[value]:
            continue
        if value.op == "indirect":
            widest = max(widest, 4 if value in plan.inside and value.args[0] in narrow else 8)
            continue
        dtype = torch.int32 if value in narrow else value.dtype
        widest = max(widest, 4 if value.op in INTEGER_DIVISIONS else 1, element(dtype).size)  # divided as floats
    for value in facts.reductions:  # lanes along a reduction: its argument is a vector
        argument = value.args[1]
        widest = max(widest, element(torch.int32 if argument in narrow else argument.dtype).size)
    lanes = max(vector_bytes // widest, 1)
    known = as_int(plan.sizes[var])
    if known is not None:
        while lanes > known and lanes > 2 and lanes // 2 >= known:
            lanes //= 2
        if lanes * widest < 8:
            return 1
    return lanes


def _cost(facts: StageFacts, plan: StagePlan) -> float:
    """Estimated work of one outer point."""
    order = [*plan.point, *plan.reduce]
    times = [1.0]
    for var in order:
        count = float(hint(plan.sizes[var]))
        if var is plan.vector:
            count = float(-(-int(count) // plan.lanes))
        elif plan.transposed and var is plan.point[-2]:  # tiles are whole
            count = float(-(-int(count) // plan.lanes) * plan.lanes)
        times.append(times[-1] * count)
    position = {var: index + 1 for index, var in enumerate(order)}
    total = sum(times[1:])  # loop overhead
    innermost = len(order)
    for value in with_nested(facts.statements):
        if value.op in _FREE:
            continue
        depends = [position[var] for var in facts.deps[value] if var in position]
        level = max(depends, default=0)
        if value in facts.after:
            level = len(plan.point)
        total += times[level] * _unit(facts, value, plan)
    for value in facts.reductions:
        places = value.args[0] in ("argmax", "argmin")
        total += times[innermost] * (2.0 if places else 1.0)
        if plan.horizontal:
            total += times[len(plan.point)] * (60.0 if places else 12.0)
    return total


def _unit(facts: StageFacts, value: Value, plan: StagePlan) -> float:
    """Cost of one execution of a statement."""
    vector = plan.vector is not None and plan.vector in facts.deps[value]
    lanes = float(plan.lanes) if vector else 1.0
    if value.op in ("load", "store"):
        if not vector:
            return 1.0
        assert plan.vector is not None
        if value.args[0] in facts.registers and (
            plan.vector in facts.outer or plan.lanes > hint(plan.sizes[plan.vector])
        ):
            return 1.0 if plan.vector in facts.outer else 6.0  # what a mask stored is waited for
        if value in plan.transposed:
            return 3.0
        stride = lane_stride(facts, value.args[1], plan.vector, plan.lanes)
        if stride == 2 and value.dtype != torch.bool and (value.op == "load" or store_pair(facts, value) is not None):
            return 3.0
        if stride == -1 and value.op == "load":
            return 1.5
        wide = 1.0 if stride == 1 else 0.5 if stride == 0 and value.op == "load" else 1.5 * lanes
        if stride is None and value.op == "load" and free_vars(value.args[1]).isdisjoint(facts.indirect):
            crossed = crossing(value.args[1], plan.vector, plan.lanes, "")
            wide = min(wide, 6.0) if crossed is not None and crossed.step == 1 else wide
        if value.op == "load" and stride is None and plan.looks_near(facts.indirect, value.args[1]):
            wide = min(wide, 8.0)  # neighbours, mostly
        if value.op == "load" or stride == 1:
            return wide
        return (4 if stride is None else 2) * wide  # places that vary are taken out of vectors one by one
    if value.op == "indirect":
        return 0.5 if value in plan.inside else 2.0 * lanes
    if value.op == "scan":
        each = 40.0 if value.args[0] == "logaddexp" else 4.0  # one waits for the other
        return each * (lanes if plan.horizontal else 1.0)
    if value.op in INTEGER_DIVISIONS and not value.dtype.is_floating_point:
        by_number = value.args[1].op == "constant"
        wide = value.dtype.itemsize == 8 and value not in plan.narrow
        return (1.5 * lanes if wide else 4.0) if by_number else 2.0 * lanes if wide else 10.0
    if value.op in _PER_LANE:
        return 12.0 * lanes
    row = hint(plan.sizes[plan.vector]) if plan.vector is not None and plan.horizontal else 0
    if vector and cost(value.op) >= ELEMENTARY and 0 < row <= plan.lanes:
        return 36.0  # the one vector of a row: nothing is computed while the result is waited for
    return 6.0 if cost(value.op) >= DIVISION else 0.5
