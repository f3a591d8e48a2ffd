"""Joins kernels that write parts of the same rows: what is padded or concatenated is stored in one pass over memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from argand.graph.sizes.expr import Expr, Simplifier, Var, as_int, coefficient, product, sum_of
from argand.ir.kernel import KernelPlan, Stage, Step
from argand.ir.loops import Value, statements_of
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.access import hint, itemsize
from argand.schedule.copier import Copier
from argand.schedule.joining.small_kernels import in_turns

if TYPE_CHECKING:
    import torch

_ROW_BYTES = 1 << 13  # of the rows that are worth it: a longer one fills its lines of memory anyway


@dataclass(frozen=True, slots=True)
class _Part:
    """A kernel that writes a part of a buffer and reads none of it.

    Arguments:
        store: the only one.
        steps: what each of its loops adds to the place that it writes, outermost first.
    """

    plan: KernelPlan
    store: Value
    steps: tuple[int, ...]

    def rows(self) -> int:
        """How many loops, from the outermost on, go from one row to another, which is disjoint from it."""
        body = self.plan.stages[0].body
        sizes = [as_int(size) or 0 for size in body.sizes]
        simplify = Simplifier(dict(zip(body.vars, body.sizes)))
        for count in range(len(sizes), 0, -1):
            apart = all(self.steps[n] >= self.steps[n + 1] * sizes[n + 1] for n in range(count - 1))
            within = self.store.args[1] - sum_of([v * s for v, s in zip(body.vars[:count], self.steps)])
            low, high = simplify.bounds(within)
            if apart and low is not None and high is not None and low >= 0 and high < self.steps[count - 1]:
                return count
        return 0


def join_parts(steps: list[Step], targets: Mapping[torch.device, Target]) -> list[Step]:
    """Neighbours that write parts of the same short rows become one kernel, which writes each row as a whole."""
    result: list[Step] = []
    run: list[_Part] = []
    for step in steps:
        part = _part(step) if isinstance(step, KernelPlan) and targets[step.device].host_memory else None
        if run and part is not None and _shared([*run, part], targets[part.plan.device]):
            run.append(part)
            continue
        result += _joined(run, targets)
        run = [part] if part is not None else []
        if part is None:
            result.append(step)
    return result + _joined(run, targets)


def _part(plan: KernelPlan) -> _Part | None:
    if len(plan.stages) != 1 or plan.outer or plan.scratch or plan.registers or plan.segments or len(plan.outputs) != 1:
        return None
    body = plan.stages[0].body
    statements = statements_of(body)
    stores = [each for each in statements if each.op == "store"]
    if body.reduction_vars or len(stores) != 1 or stores[0].args[3] is not None:
        return None
    if any(each.op == "load" and each.args[0] in plan.outputs for each in statements):
        return None  # in place
    steps = [as_int(step) for step in (coefficient(stores[0].args[1], var) for var in body.vars) if step is not None]
    known = [step for step in steps if step]
    return _Part(plan, stores[0], tuple(known)) if len(known) == len(body.vars) else None


def _shared(parts: list[_Part], target: Target) -> int:
    """How many outermost loops the parts share; 0 where one kernel for them would not pay."""
    first = parts[0]
    if any(part.plan.outputs != first.plan.outputs for part in parts):
        return 0
    bodies = [part.plan.stages[0].body for part in parts]
    if sum(len(statements_of(body)) for body in bodies) > target.max_statements:
        return 0
    count = min(part.rows() for part in parts)
    while count and any(
        body.sizes[:count] != bodies[0].sizes[:count] or part.steps[:count] != first.steps[:count]
        for part, body in zip(parts, bodies)
    ):
        count -= 1
    width = itemsize(first.plan.buffers[first.plan.outputs[0]].dtype)
    if not count or first.steps[count - 1] * width > _ROW_BYTES:
        return 0
    return count if hint(product(bodies[0].sizes[:count])) >= target.threads else 0


def _joined(parts: list[_Part], targets: Mapping[torch.device, Target]) -> list[Step]:
    if len(parts) < 2:
        return [part.plan for part in parts]
    count = _shared(parts, targets[parts[0].plan.device])
    sizes = parts[0].plan.stages[0].body.sizes[:count]
    outer = tuple(Var(f"x{number}") for number in range(count))
    stages = tuple(_inside(part.plan.stages[0], outer) for part in parts)
    plan = in_turns([part.plan for part in parts])
    return [replace(plan, outer=tuple(zip(outer, sizes)), stages=stages)]


def _inside(stage: Stage, outer: tuple[Var, ...]) -> Stage:
    """A stage whose outermost loops are those of the kernel."""
    body, count = stage.body, len(outer)
    own = tuple(Var(f"y{number}") for number in range(len(body.vars) - count))
    variables = (*outer, *own)
    index: dict[Var, Expr] = dict(zip(body.vars, variables))
    copier = Copier(index)
    copier.copy(body.statements, copier.statements)
    return Stage(replace(body, vars=variables, statements=copier.statements), len(own), stage.node)
