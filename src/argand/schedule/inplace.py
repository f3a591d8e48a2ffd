"""Lets a kernel write its result over an input that nobody needs afterwards.

The written lines are in the cache already then, and the memory is not needed twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from argand.graph.expr import Expr, product
from argand.lower.ir import Buffer, ExternNode, LoopBlock, LoopBody, Value, statements_of
from argand.schedule.access import tensor_refs
from argand.schedule.kernel import KernelPlan, Schedule, Stage


def reuse_in_place(made: Schedule) -> None:
    """Alias outputs of one-stage pointwise kernels to dying inputs with the same elements; fills `made.aliases`."""
    last = _last_uses(made)
    returned = {ref.buffer for ref in tensor_refs((made.outputs, [ref for _, ref in made.mutations]))}
    fresh = {
        name
        for step in made.steps
        if isinstance(step, ExternNode) and step.out_variant is None and not aliases_arguments(step)
        for name in step.outputs
        if name is not None
    }
    pinned = {*made.inputs, *made.constants, *returned}
    for number, step in enumerate(made.steps):
        if not isinstance(step, KernelPlan) or len(step.stages) != 1 or step.stages[0].body.reduction_vars:
            continue
        taken: set[str] = set()
        for output in step.outputs:
            for name in step.inputs:
                if name in pinned or name in taken or last[name] != number or name not in made.buffers:
                    continue
                same = _same_layout(step.buffers[name], step.buffers[output])
                if output in returned and not (name in fresh and same):
                    continue
                if _root(made.aliases, name) in returned or not _elementwise(step, name, output):
                    continue
                made.aliases[output] = name
                taken.add(name)
                _rename(step, name, output)
                if output in fresh or name in fresh:
                    fresh.add(output)
                break


def aliases_arguments(node: ExternNode) -> bool:
    """Whether the operator may return memory of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _root(aliases: dict[str, str], name: str) -> str:
    while name in aliases:
        name = aliases[name]
    return name


def _last_uses(made: Schedule) -> dict[str, int]:
    last: dict[str, int] = {}
    for number, step in enumerate(made.steps):
        if isinstance(step, KernelPlan):
            used = (*step.inputs, *step.outputs)
        else:
            used = (*(ref.buffer for ref in tensor_refs((step.args, step.kwargs))), *step.mutates)
            if aliases_arguments(step):
                # Its results may be views of its arguments: these stay as they are to the end.
                last.update({name: len(made.steps) for name in used})
                used = ()
        for name in used:
            last[name] = max(number, last.get(name, number))
    return last


def _same_layout(one: Buffer, two: Buffer) -> bool:
    return one.size == two.size and one.stride == two.stride and one.dtype == two.dtype


def _elementwise(plan: KernelPlan, name: str, output: str) -> bool:
    """Whether each element of `name` is loaded only where that element of `output` is stored, and before."""
    one, two = plan.buffers[name], plan.buffers[output]
    if one.dtype.itemsize != two.dtype.itemsize or one.dtype != two.dtype or one.device != two.device:
        return False
    if _numel(one) is not _numel(two):
        return False
    stored: Expr | None = None
    for statement in statements_of(plan.stages[0].body):
        if statement.op == "store" and statement.args[0] == output:
            if stored is not None or any(statement.args[3:]):
                return False
            stored = statement.args[1]
    for statement in statements_of(plan.stages[0].body):
        if statement.op == "load" and statement.args[0] == name and statement.args[1] is not stored:
            return False
        if statement.op == "load" and statement.args[0] == output:
            return False
    body = plan.stages[0].body
    if stored is None or not set(body.vars) <= stored.free:
        return False
    positions = {id(s): n for n, s in enumerate(statements_of(body))}
    loads = [positions[id(s)] for s in statements_of(body) if s.op == "load" and s.args[0] == name]
    stores = [positions[id(s)] for s in statements_of(body) if s.op == "store" and s.args[0] == output]
    return bool(loads) and max(loads) < min(stores)


def _numel(buffer: Buffer) -> Expr:
    return product(buffer.size)


def _rename(plan: KernelPlan, name: str, output: str) -> None:
    body = plan.stages[0].body
    known: dict[int, Value] = {}
    statements = _renamed(body.statements, name, output, known)
    new = LoopBody(body.vars, body.sizes, body.reduction_vars, body.reduction_sizes, statements)
    plan.stages = (Stage(new, plan.stages[0].inner, plan.stages[0].node),)
    plan.inputs = tuple(n for n in plan.inputs if n != name)
    plan.buffers = {n: b for n, b in plan.buffers.items() if n != name}


def _renamed(statements: list[Value], name: str, output: str, known: dict[int, Value]) -> list[Value]:
    result = []
    for old in statements:
        args: list[Any] = []
        for arg in old.args:
            if isinstance(arg, Value):
                args.append(known[arg.id])
            elif isinstance(arg, LoopBlock):
                inner = _renamed(arg.statements, name, output, known)
                args.append(LoopBlock(inner, known[arg.result.id]))
            else:
                args.append(arg)
        if old.op == "load" and old.args[0] == name:
            args[0] = output
        known[old.id] = replace(old, args=tuple(args))
        result.append(known[old.id])
    return result
