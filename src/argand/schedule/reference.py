"""Runs schedules with plain tensor operations: what fusion is tested against.

Shared loops run one point at a time, last point first, and memory that was not written holds NaN (or a large integer):
a stage that reads across shared points, or before the write, gives a wrong result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph.nodes.devices import made_on
from argand.ir.interpret import Env, Memory, Run, run_body, sizes, unwritten, view
from argand.ir.kernel import KernelPlan, Product, Schedule
from argand.ir.loops import TensorRef
from argand.schedule.access import is_empty


def run_schedule(
    schedule: Schedule, inputs: Sequence[Any], run: Callable[[KernelPlan, Env, Memory], None] | None = None
) -> list[Any]:
    """The outputs of a schedule; its inputs are not changed.

    Arguments:
        run: runs one kernel on flat tensors by name, given the values of size symbols; `run_kernel` unless told.
    """
    run = run or run_kernel
    whole = Run(schedule, inputs, copied=True)
    for name, buffer in schedule.buffers.items():
        if is_empty(buffer):
            whole.allocate(name)
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            for name in step.outputs:
                taken = schedule.aliases.get(name)
                if taken is not None and name not in whole.memory:
                    whole.memory[name] = whole.memory.pop(taken)
                whole.allocate(name)
            run(step, whole.env, whole.memory)
        else:
            whole.call(step)
    return whole.outputs()


def run_kernel(plan: KernelPlan, env: Env, memory: Memory) -> None:
    """One kernel, by the definition in `ir.kernel`."""
    for segment in plan.segments:
        theirs = {name: memory[other] for name, other in segment.buffers.items()}
        run_kernel(plan.of_segment(segment), {**env, **segment.numbers}, theirs)
    if plan.segments:
        return
    allowed = {name: memory[name] for name in (*plan.inputs, *plan.outputs)}
    with made_on(plan.device):
        if plan.product is None:
            _run_points(plan, env, allowed)
            return
        *operands, last = plan.stages
        for stage in operands:
            name = stage.body.statements[-1].args[0]
            allowed[name] = unwritten(plan.buffers[name], env)
            run_body(stage.body, env, allowed)
        run_body(last.body, env, {**allowed, plan.product.result: _product(plan, plan.product, allowed)})


def _run_points(plan: KernelPlan, env: Env, allowed: Memory) -> None:
    counts = sizes([size for _, size in plan.outer], env)
    for point in itertools.product(*(range(count - 1, -1, -1) for count in counts)):
        here = {**env, **{var.name: value for (var, _), value in zip(plan.outer, point)}}
        local = {name: unwritten(plan.buffers[name], env) for name in (*plan.scratch, *plan.registers)}
        for stage in plan.stages:
            run_body(stage.body, here, {**allowed, **local}, fixed=len(plan.outer))


def _product(plan: KernelPlan, product: Product, memory: Memory) -> torch.Tensor:
    """A product as it lies in memory."""

    def operand(ref: TensorRef) -> torch.Tensor:
        return view(ref, {}, memory).float()

    value = operand(product.left) @ operand(product.right)
    if product.bias is not None:
        value = value + operand(product.bias)
    buffer = plan.buffers[product.result]
    laid = torch.empty_strided(sizes(buffer.size, {}), sizes(buffer.stride, {}), dtype=buffer.dtype)
    return laid.copy_(value).as_strided((value.numel(),), (1,))
