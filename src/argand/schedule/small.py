"""Joins kernels that are so small that launching them costs more than running them."""

from __future__ import annotations

from argand.graph.expr import product
from argand.ir.kernel import KernelPlan, Step
from argand.ir.loops import statements_of
from argand.schedule.access import hint
from argand.schedule.group import MAX_STATEMENTS

# Loop points of a kernel that takes about as long to run as to launch.
SMALL_POINTS = 4096


def join_small(steps: list[Step]) -> list[Step]:
    """Neighbouring small kernels without shared loops become one, which runs their stages in turn."""
    result: list[Step] = []
    for step in steps:
        before = result[-1] if result else None
        if isinstance(step, KernelPlan) and isinstance(before, KernelPlan) and _is_small(step) and _is_small(before):
            if _statements(step) + _statements(before) <= MAX_STATEMENTS:
                result[-1] = _joined(before, step)
                continue
        result.append(step)
    return result


def _is_small(plan: KernelPlan) -> bool:
    if plan.outer or plan.scratch:
        return False
    points = sum(hint(product((*stage.body.sizes, *stage.body.reduction_sizes))) for stage in plan.stages)
    return points <= SMALL_POINTS


def _statements(plan: KernelPlan) -> int:
    return sum(len(statements_of(stage.body)) for stage in plan.stages)


def _joined(first: KernelPlan, second: KernelPlan) -> KernelPlan:
    outputs = tuple(dict.fromkeys((*first.outputs, *second.outputs)))
    inputs = tuple(name for name in dict.fromkeys((*first.inputs, *second.inputs)) if name not in outputs)
    return KernelPlan(
        first.name,
        (),
        (*first.stages, *second.stages),
        {},
        first.registers | second.registers,
        inputs,
        outputs,
        tuple(sorted({*first.symbols, *second.symbols})),
        {**first.buffers, **second.buffers},
        tuple(dict.fromkeys((*first.origins, *second.origins))),
    )
