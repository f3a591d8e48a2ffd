"""Lets a kernel write its result over an input that nobody needs afterwards.

The written lines are in the cache already then, and the memory is not needed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from argand.graph.operators import data_checks
from argand.graph.operators.optimizer_ops import optimizer_ops
from argand.graph.sizes.expr import Expr, Simplifier, as_int, product, sum_of
from argand.ir.kernel import KernelPlan, Schedule, Stage, Step, memory_of
from argand.ir.loops import (
    Buffer,
    ExternNode,
    LoopBody,
    TensorRef,
    Value,
    aliases_arguments,
    checks_values,
    statements_of,
    tensor_refs,
)
from argand.schedule.access import has_effect
from argand.schedule.copier import renamed
from argand.schedule.space import affine, is_dense_row


def reuse_in_place(schedule: Schedule) -> None:
    """Alias outputs of kernels to dying inputs with the same elements; fills `schedule.aliases`."""
    last = _last_uses(schedule)
    returned = {ref.buffer for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations]))}
    fresh = {
        name
        for step in schedule.steps
        if isinstance(step, ExternNode) and step.out_variant is None and not aliases_arguments(step)
        for name in step.outputs
        if name is not None
    }
    pinned = {*schedule.inputs, *schedule.constants, *returned}
    writers = Counter(output for step in schedule.steps for output in step.outputs)  # a long cat is stored by several
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, KernelPlan):
            continue
        taken: set[str] = set()
        for output in step.outputs:
            for name in step.inputs if writers[output] == 1 else ():
                if name in pinned or name in taken or last[name] != number or name not in schedule.buffers:
                    continue
                same = _same_layout(step.buffers[name], step.buffers[output])
                if output in returned and not (name in fresh and same):
                    continue
                if memory_of(schedule.aliases, name) in returned or not _elementwise(step, name, output):
                    continue
                schedule.aliases[output] = name
                taken.add(name)
                _rename(step, name, output)
                if output in fresh or name in fresh:
                    fresh.add(output)
                break


def write_inputs_in_place(schedule: Schedule, written: Sequence[tuple[str, int]]) -> bool:
    """Let kernels store what inputs shall hold afterwards in the inputs themselves, where nobody needs the old value.

    The result is then the input itself; whoever calls the graph has nothing left to copy. What may raise has run by
    then (`Schedule.writes_to_input`): the program may be run again on what the inputs held.

    Arguments:
        written: name of an input, and the position of the result that is its new value.

    Returns:
        Whether a kernel changed: kernels that shared a name may not do the same any more.
    """
    before = len(schedule.aliases)
    last = _last_uses(schedule)
    raising = max((number for number, step in enumerate(schedule.steps) if may_raise(step)), default=-1)
    returned = [ref.buffer for ref in tensor_refs(schedule.outputs)]
    writers: dict[str, list[int]] = {}
    for number, step in enumerate(schedule.steps):
        for output in (*step.outputs, *(step.mutates if isinstance(step, ExternNode) else ())):
            writers.setdefault(str(output), []).append(number)
    for number, step in enumerate(schedule.steps):
        if number > raising and isinstance(step, ExternNode) and str(step.target).startswith("argand.fused_"):
            schedule.steps[number] = _updating(schedule, step, number, written, last)
    for name, position in written:
        ref = schedule.outputs[position]
        if not isinstance(ref, TensorRef) or len(writers.get(ref.buffer, ())) != 1 or name in returned:
            continue
        output, [number] = ref.buffer, writers[ref.buffer]
        step = schedule.steps[number]
        if not isinstance(step, KernelPlan) or name not in schedule.inputs or name not in schedule.buffers:
            continue
        if number < raising or (number == raising and may_raise(step)):
            continue
        one, two = schedule.buffers[name], schedule.buffers[output]
        if output in schedule.aliases or output in schedule.aliases.values() or returned.count(output) != 1:
            continue
        if not (_is_whole(ref, two) and _same_layout(one, two)) or two.dtype.is_complex:
            continue
        if last.get(name, -1) > number or (last.get(name, -1) == number and not _elementwise(step, name, output)):
            continue
        schedule.aliases[output] = name
        _rename(step, name, output)
    return len(schedule.aliases) != before


def may_raise(step: Step) -> bool:
    """Whether values in the host's memory can make a step raise."""
    if isinstance(step, ExternNode):
        return has_effect(step) or data_checks.may_raise(step.target, step.args, step.kwargs)
    return step.device.type == "cpu" and any(checks_values(stage.body.statements) for stage in step.stages)


def _updating(
    schedule: Schedule, step: ExternNode, number: int, written: Sequence[tuple[str, int]], last: dict[str, int]
) -> ExternNode:
    """A fused optimizer's step as a call of torch's kernel that writes to the inputs, where all it writes are such."""
    fused = optimizer_ops().by_functional[step.target]
    targets = fused.targets(step.args, step.kwargs)
    returned = [ref.buffer for ref in tensor_refs(schedule.outputs)]
    positions = {ref.buffer: position for position, ref in enumerate(schedule.outputs) if isinstance(ref, TensorRef)}
    places = dict(written)
    arguments = [ref.buffer for ref in tensor_refs((step.args, step.kwargs))]
    for target, output in zip(targets, step.outputs):
        name = target.buffer
        if output is None or name not in schedule.inputs or arguments.count(name) != 1 or name in returned:
            return step
        whole = _is_whole(target, schedule.buffers[name]) and _same_layout(
            schedule.buffers[name], schedule.buffers[output]
        )
        if not whole or last.get(output, number) != number or last[name] != number or returned.count(output) != 1:
            return step
        ref = schedule.outputs[positions[output]]
        if places.get(name) != positions[output] or not _is_whole(ref, schedule.buffers[output]):
            return step
    for target, output in zip(targets, step.outputs):
        schedule.outputs[positions[str(output)]] = target
        del schedule.buffers[str(output)]
    return replace(step, target=fused.writing, outputs=(), mutates=tuple(target.buffer for target in targets))


def _is_whole(ref: Any, buffer: Buffer) -> bool:
    same = isinstance(ref, TensorRef) and ref.size == buffer.size and ref.stride == buffer.stride
    return same and as_int(ref.offset) == 0 and ref.dtype in (None, buffer.dtype)


def _last_uses(schedule: Schedule) -> dict[str, int]:
    last: dict[str, int] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, KernelPlan):
            used = (*step.inputs, *step.outputs)
        else:
            used = (*(ref.buffer for ref in tensor_refs((step.args, step.kwargs))), *step.mutates)
            if aliases_arguments(step):
                # Its results may be views of its arguments: these stay as they are to the end.
                last.update({name: len(schedule.steps) for name in used})
                used = ()
        for name in used:
            last[name] = max(number, last.get(name, number))
    return last


def _same_layout(one: Buffer, two: Buffer) -> bool:
    same = one.size == two.size and one.stride == two.stride
    return same and one.dtype == two.dtype and one.device == two.device


def _elementwise(plan: KernelPlan, name: str, output: str) -> bool:
    """Whether no element of `name` is loaded after that element of `output` was stored.

    The store's stage loads it at the same index, and before; earlier stages load it within the same shared point. Later
    stages may load `output`: they get what was stored, wherever that is.
    """
    one, two = plan.buffers[name], plan.buffers[output]
    if one.dtype != two.dtype or one.device != two.device or _numel(one) is not _numel(two):
        return False
    uses: list[tuple[int, int, Value]] = []  # stage, position in it, statement
    for number, stage in enumerate(plan.stages):
        for position, statement in enumerate(statements_of(stage.body)):
            if statement.op in ("load", "store") and statement.args[0] in (name, output):
                uses.append((number, position, statement))
    stores = [use for use in uses if use[2].op == "store"]
    if len(stores) != 1 or any(stores[0][2].args[3:]):
        return False
    home, position, store = stores[0]
    if any(number <= home for number, _, use in uses if use.op == "load" and use.args[0] == output):
        return False
    body = plan.stages[home].body
    index: Expr = store.args[1]
    if body.reduction_vars or not set(body.vars) <= index.free:
        return False
    for number, place, load in uses:
        if load is store or load.args[0] == output:
            continue
        if number == home:
            if place > position or load.args[1] is not index:
                return False
        elif number > home or not _same_row(plan, index, plan.stages[home], load.args[1], plan.stages[number]):
            return False
    return True


def _same_row(plan: KernelPlan, stored: Expr, writer: Stage, loaded: Expr, reader: Stage) -> bool:
    """Whether an earlier stage touches only what its own shared point overwrites later."""
    if not plan.outer:
        return False  # stages of such kernels run one after the other, but their loops are not known to match
    outer = {var for var, _ in plan.outer}
    dims = dict(zip(writer.body.vars, writer.body.sizes))
    loops = {**dims, **dict(zip(reader.body.vars, reader.body.sizes))}
    loops.update(zip(reader.body.reduction_vars, reader.body.reduction_sizes))
    one, two = affine(stored, loops), affine(loaded, loops)
    if one is None or two is None:
        return False
    if any(one.coefficients.get(var) is not two.coefficients.get(var) for var in outer):
        return False
    row = is_dense_row({v: c for v, c in one.coefficients.items() if v not in outer}, dims)
    if row is None:
        return False
    inner = [c * v for v, c in two.coefficients.items() if v not in outer]
    own = dict(zip(reader.body.vars, reader.body.sizes))
    own.update(zip(reader.body.reduction_vars, reader.body.reduction_sizes))
    return Simplifier(own).between(sum_of([*inner, two.rest]) - one.rest, row)


def _numel(buffer: Buffer) -> Expr:
    return product(buffer.size)


def _rename(plan: KernelPlan, name: str, output: str) -> None:
    stages = []
    for stage in plan.stages:
        body = stage.body
        statements = renamed(body.statements, {name: output})
        new = LoopBody(body.vars, body.sizes, body.reduction_vars, body.reduction_sizes, statements)
        stages.append(Stage(new, stage.inner, stage.node))
    plan.stages = tuple(stages)
    plan.inputs = tuple(n for n in plan.inputs if n != name)
    plan.buffers = {n: b for n, b in plan.buffers.items() if n != name}
