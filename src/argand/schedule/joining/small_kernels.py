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
    for step in steps:
        before = result[-1] if result else None
        if isinstance(step, KernelPlan) and isinstance(before, KernelPlan) and before.device == step.device:
            target = targets[step.device]
            small = _is_small(step, target) and _is_small(before, target)
            if small and _statements(step) + _statements(before) <= target.max_statements:
                result[-1] = _joined(before, step)
                continue
        result.append(step)
    return result


def _is_small(plan: KernelPlan, target: Target) -> bool:
    if plan.outer or plan.scratch or not target.barriers:
        return False
    points = (hint(product((*stage.body.sizes, *stage.body.reduction_sizes))) for stage in plan.stages)
    return max(points) <= target.small_points


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
        first.device,
    )
