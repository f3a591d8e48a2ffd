"""Joins kernels that are so small that launching them costs more than running them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from argand.graph.sizes.expr import product
from argand.ir.kernel import KernelPlan, Step
from argand.ir.loops import statements_of
from argand.ir.target import Target
from argand.schedule.access import hint

if TYPE_CHECKING:
    import torch


def join_small(steps: list[Step], targets: Mapping[torch.device, Target]) -> list[Step]:
    """Neighbouring small kernels without shared loops become one, which runs their stages in turn."""
    result: list[Step] = []
    run: list[KernelPlan] = []
    statements = 0
    for step in steps:
        target = targets[step.device] if isinstance(step, KernelPlan) else None
        if not isinstance(step, KernelPlan) or target is None or not _is_small(step, target):
            result += [*_joined(run), step]
            run, statements = [], 0
            continue
        more = _statements(step)
        if run and (run[0].device != step.device or statements + more > target.max_statements):
            result += _joined(run)
            run, statements = [], 0
        run.append(step)
        statements += more
    return result + _joined(run)


def _is_small(plan: KernelPlan, target: Target) -> bool:
    if plan.outer or plan.scratch or not target.barriers:
        return False
    points = (hint(product((*stage.body.sizes, *stage.body.reduction_sizes))) for stage in plan.stages)
    return max(points) <= target.small_points


def _statements(plan: KernelPlan) -> int:
    return sum(len(statements_of(stage.body)) for stage in plan.stages)


def _joined(run: list[KernelPlan]) -> list[Step]:
    """One kernel for a run of them, if there are any."""
    return [in_turns(run)] if len(run) > 1 else [*run]


def in_turns(run: list[KernelPlan]) -> KernelPlan:
    """One kernel that runs the stages of several, which share no loops, one after the other."""
    outputs = tuple(dict.fromkeys(name for plan in run for name in plan.outputs))
    written = frozenset(outputs)
    first = run[0]
    return KernelPlan(
        first.name,
        (),
        tuple(stage for plan in run for stage in plan.stages),
        {},
        frozenset().union(*(plan.registers for plan in run)),
        tuple(dict.fromkeys(name for plan in run for name in plan.inputs if name not in written)),
        outputs,
        tuple(sorted({name for plan in run for name in plan.symbols})),
        {name: buffer for plan in run for name, buffer in plan.buffers.items()},
        tuple(dict.fromkeys(origin for plan in run for origin in plan.origins)),
        first.device,
    )
