"""Readable texts of loop programs before and after fusion ("ir_pre_fusion", "ir_post_fusion")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from argand.graph.expr import Expr
from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import Buffer, ExternNode, LoopBlock, LoopBody, LoopNode, Program, Value, tensor_refs
from argand.schedule.access import accesses


def pre_fusion_text(program: Program) -> str:
    """One block per node, in program order."""
    users: dict[str, list[str]] = {}
    for node in program.nodes:
        for name in accesses(node).reads:
            users.setdefault(name, []).append(node.name)
    for ref in tensor_refs(program.outputs):
        users.setdefault(ref.buffer, []).append("OUTPUT")
    blocks = []
    for node in program.nodes:
        if isinstance(node, ExternNode):
            blocks.append(_extern_text(node))
        else:
            blocks.append(_loop_text(node, program, users))
    return "\n\n".join(blocks) + "\n"


def post_fusion_text(schedule: Schedule) -> str:
    """One block per step, in execution order."""
    blocks = []
    for step in schedule.steps:
        blocks.append(_kernel_text(step) if isinstance(step, KernelPlan) else _extern_text(step))
    return "\n\n".join(blocks) + "\n"


def _loop_text(node: LoopNode, program: Program, users: dict[str, list[str]]) -> str:
    found = accesses(node)
    body = node.body
    lines = [f"{node.name}: SchedulerNode(ComputedBuffer)"]
    lines += [f"{node.name}.writes = {_names(found.writes)}", f"{node.name}.reads = {_names(found.reads)}"]
    for name in found.writes:
        listed = ", ".join(f"NodeUser(node={user})" for user in users.get(name, ()))
        lines.append(f"{name}.users = [{listed}]")
        if name in program.buffers:
            lines.append(f"{name}.layout = {_layout(program.buffers[name])}")
    device = next((program.buffers[n].device for n in found.writes if n in program.buffers), "cpu")
    lines.append(f"{node.name}.group.device = {device}")
    lines.append(f"{node.name}.group.iteration = ({_tuple(body.sizes)}, {_tuple(body.reduction_sizes)})")
    lines += _origin_lines(node.origins)
    return "\n".join([*lines, *body_text(f"{node.name}_loop_body", body)])


def _kernel_text(plan: KernelPlan) -> str:
    kind = "FusedSchedulerNode" if len(plan.stages) > 1 or len(plan.stages[0].node.split()) > 1 else "SchedulerNode"
    nodes = ",".join(name for stage in plan.stages for name in stage.node.split())
    lines = [f"{plan.name}: {kind}({nodes})"]
    lines += [f"{plan.name}.writes = {_names(plan.outputs)}", f"{plan.name}.reads = {_names(plan.inputs)}"]
    lines.append(f"{plan.name}.outer = ({', '.join(f'{var}: {size}' for var, size in plan.outer)})")
    for name in plan.scratch:
        lines.append(f"{plan.name}.scratch {name} = {_layout(plan.buffers[name])}")
    if plan.registers:
        lines.append(f"{plan.name}.registers = {_names(sorted(plan.registers))}")
    lines += _origin_lines(plan.origins)
    for number, stage in enumerate(plan.stages):
        lines += body_text(f"{plan.name}_stage{number}", stage.body)
    return "\n".join(lines)


def _extern_text(node: ExternNode) -> str:
    outputs = ", ".join(str(name) for name in node.outputs)
    reads = _names(ref.buffer for ref in tensor_refs((node.args, node.kwargs)))
    lines = [f"{node.name}: ExternKernelSchedulerNode({node.target})", f"{node.name}.writes = [{outputs}]"]
    lines.append(f"{node.name}.reads = {reads}")
    if node.out_variant:
        lines.append(f"{node.name}.out_variant = {node.out_variant}")
    if node.reason:
        lines.append(f"{node.name}.reason = {node.reason}")
    return "\n".join([*lines, *_origin_lines(node.origins)])


def _origin_lines(origins: Iterable[Any]) -> list[str]:
    return [f"# {origin.fx_code}{f'  <- {origin.user_line}' if origin.user_line else ''}" for origin in origins]


def body_text(name: str, body: LoopBody) -> list[str]:
    """A loop body as a class with one method over an `ops` handler."""
    ranges = ", ".join(f"{v}: {s}" for v, s in zip(body.vars, body.sizes))
    reduced = ", ".join(f"{v}: {s}" for v, s in zip(body.reduction_vars, body.reduction_sizes))
    indices: dict[Expr, str] = {}
    statements = _statements(body.statements, indices, "        ")
    lines = [f"class {name}:", f"    var_ranges = {{{ranges}}}"]
    if reduced:
        lines.append(f"    reduction_ranges = {{{reduced}}}")
    lines += [f"    {label} = {expr}" for expr, label in indices.items()]
    return [*lines, "    def body(self, ops):", *statements]


def _statements(statements: list[Value], indices: dict[Expr, str], indent: str) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        args = []
        for arg in statement.args:
            if isinstance(arg, LoopBlock):
                lines.append(f"{indent}def block{statement.id}():")
                lines += _statements(arg.statements, indices, indent + "    ")
                lines.append(f"{indent}    return {_value_name(arg.result)}")
                args.append(f"block{statement.id}")
            elif isinstance(arg, Value):
                args.append(_value_name(arg))
            elif isinstance(arg, Expr):
                label = indices.setdefault(arg, f"index{len(indices)}")
                args.append(f"self.{label}")
            else:
                args.append(repr(arg))
        call = f"ops.{statement.op}({', '.join(args)})"
        lines.append(f"{indent}{call}" if statement.op == "store" else f"{indent}{_value_name(statement)} = {call}")
    return lines


def _value_name(value: Value) -> str:
    return f"{value.op}_{value.id}"


def _layout(buffer: Buffer) -> str:
    return f"({buffer.dtype}, size={_tuple(buffer.size)}, stride={_tuple(buffer.stride)})"


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _tuple(items: Iterable[Expr]) -> str:
    return f"({', '.join(str(item) for item in items)})"
