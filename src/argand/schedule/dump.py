"""Readable texts of what scheduling made of a loop program ("ir_post_fusion", "schedule", "fusion")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from argand.graph.sizes.expr import Expr
from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import (
    Buffer,
    ExternNode,
    LoopBlock,
    LoopBody,
    TensorRef,
    Value,
    statements_of,
    tensor_refs,
)
from argand.ir.text import comma_separated, listed, memory_dependency, python_list, python_tuple, star_dependency
from argand.schedule.access import Graph
from argand.schedule.fusion.fuse import Unit


def post_fusion_text(schedule: Schedule) -> str:
    """One block per step, in execution order."""
    blocks = []
    users = _step_users(schedule)
    given = given_to(schedule)
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            blocks.append(_kernel_text(step, given, users, overwritten(schedule, step, given)))
        else:
            blocks.append(_extern_text(step, given, users))
    return "\n\n".join(blocks) + "\n"


def given_to(schedule: Schedule) -> frozenset[str]:
    """The buffers that a schedule does not make."""
    return frozenset((*schedule.inputs, *schedule.constants))


def overwritten(schedule: Schedule, step: KernelPlan, given: frozenset[str]) -> dict[str, str]:
    """What a kernel writes over: output -> the buffer that it reads there first, by the name that it had before.

    Arguments:
        given: `given_to(schedule)`.
    """
    taken = [name for name in step.outputs if name in schedule.aliases or name in given]
    if not taken:
        return {}
    loaded = {s.args[0] for stage in step.stages for s in statements_of(stage.body) if s.op == "load"}
    return {name: schedule.aliases.get(name, name) for name in taken if name in loaded}


def order_text(schedule: Schedule) -> str:
    """One line per step, in execution order."""
    lines, given = [], given_to(schedule)
    for number, step in enumerate(schedule.steps):
        if isinstance(step, KernelPlan):
            what = f"{len(step.stages)} stage{'s' if len(step.stages) > 1 else ''}"
            read = ", ".join((*step.inputs, *overwritten(schedule, step, given).values()))
            lines.append(f"{number}: {step.name}({read}) -> {', '.join(step.outputs)}, {what}")
        else:
            reads = dict.fromkeys(ref.buffer for ref in tensor_refs((step.args, step.kwargs)))
            written = ", ".join([*map(str, step.outputs), *step.mutates])
            lines.append(f"{number}: {step.target}({', '.join(reads)}) -> {written}")
    taken = [f"  {new} takes the memory of {old}" for new, old in schedule.aliases.items()]
    return "\n".join([f"{len(lines)} steps, {len(schedule.kernels())} different kernels:", *lines, *taken])


def fusion_text(graph: Graph, units: Iterable[Unit]) -> str:
    """Which nodes were put together, and why the others were not."""
    lines = []
    for unit in units:
        nodes = [graph.nodes[position] for position in unit.positions]
        names = " + ".join(node.name for node in nodes)
        if len(nodes) > 1:
            inside = {name for position in unit.positions for name in graph.accesses[position].writes}
            shared = {name for position in unit.positions for name in graph.accesses[position].reads}
            lines.append(f"{names}: one kernel; between them {_names(sorted(inside & shared)) or '[]'}")
        elif isinstance(nodes[0], ExternNode):
            lines.append(f"{names}: a call of {nodes[0].target}, not fused")
        elif not unit.fusible:
            lines.append(f"{names}: alone, it updates {_names(nodes[0].mutates)} in place")
        else:
            lines.append(f"{names}: alone")
    return "\n".join([f"{len(graph.nodes)} nodes became {len(lines)} steps:", *lines])


def dependencies_text(graph: Graph) -> str:
    """What every node reads and writes, and which nodes must run before it."""
    lines = []
    for node, access, deps in zip(graph.nodes, graph.accesses, graph.deps):
        after = _names(graph.nodes[position].name for position in sorted(deps))
        lines.append(f"{node.name}: reads {_names(access.reads)} writes {_names(access.writes)} after {after}")
    return "\n".join(lines)


def _step_users(schedule: Schedule) -> dict[str, list[str]]:
    """Which steps read a buffer, and whether it leaves the graph."""
    users: dict[str, list[str]] = {}
    given = given_to(schedule)
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            for name in step.inputs:
                users.setdefault(name, []).append(f"NodeUser(node={step.name}, can_inplace=False)")
            for name in overwritten(schedule, step, given).values():
                users.setdefault(name, []).append(f"NodeUser(node={step.name}, can_inplace=True)")
        else:
            for name in dict.fromkeys(ref.buffer for ref in tensor_refs((step.args, step.kwargs))):
                users.setdefault(name, []).append(f"NodeUser(node={step.name}, can_inplace=False)")
    for ref in tensor_refs((tuple(schedule.outputs), tuple(ref for _, ref in schedule.mutations))):
        users.setdefault(ref.buffer, []).append("NodeUser(node=OUTPUT, can_inplace=False)")
    return {name: list(dict.fromkeys(texts)) for name, texts in users.items()}


def _memory(plan: KernelPlan, op: str, names: dict[str, str]) -> dict[str, list[str]]:
    """Buffer -> the dependencies on it of a kernel's loads or stores, each once: of those in `names`, so named."""
    by_buffer: dict[str, dict[str, None]] = {}
    for stage in plan.stages:
        body = stage.body
        sizes = dict(zip((*body.vars, *body.reduction_vars), (*body.sizes, *body.reduction_sizes)))
        sizes.update(plan.outer)
        for statement in statements_of(body):
            if statement.op == op:
                buffer, index = statement.args[:2]
                if buffer in names:
                    by_buffer.setdefault(buffer, {})[memory_dependency(names[buffer], index, sizes)] = None
    return {name: list(deps) for name, deps in by_buffer.items()}


def _kernel_text(
    plan: KernelPlan, given: frozenset[str], users: dict[str, list[str]], overwrites: dict[str, str]
) -> str:
    kind = "FusedSchedulerNode" if len(plan.stages) > 1 or len(plan.stages[0].node.split()) > 1 else "SchedulerNode"
    nodes = ",".join(name for stage in plan.stages for name in stage.node.split())
    lines = [f"{plan.name}: {kind}({nodes})"]
    stores = _memory(plan, "store", {name: name for name in plan.outputs})
    before = {**{name: name for name in plan.inputs}, **overwrites}
    loads = {before[name]: deps for name, deps in _memory(plan, "load", before).items()}
    reads = [(name, dep) for name, deps in loads.items() for dep in deps]
    writes = [dep for deps in stores.values() for dep in deps]
    lines += listed(f"{plan.name}.writes", writes)
    lines += listed(f"{plan.name}.unmet_dependencies", [dep for name, dep in reads if name not in given])
    lines += listed(f"{plan.name}.met_dependencies", [dep for name, dep in reads if name in given])
    for name in plan.outputs:
        lines += listed(f"{name}.users", users.get(name, []))
    for name, old in overwrites.items():
        lines.append(f"{name}.overwrites = {old}")
    device = next((plan.buffers[name].device for name in plan.outputs if name in plan.buffers), "cpu")
    lines.append(f"{plan.name}.group.device = {device}")
    own = [(stage.body.sizes, stage.body.reduction_sizes) for stage in plan.stages]
    nests = [f"({python_tuple(p)}, {python_tuple(r)})" for p, r in own]
    lines.append(f"{plan.name}.group.iteration = {nests[0] if len(nests) == 1 else '(' + ', '.join(nests) + ')'}")
    sizes = [f"({python_list(p)}, {python_list(r)})" for p, r in own]
    lines.append(f"{plan.name}.sizes = {sizes[0] if len(sizes) == 1 else '(' + ', '.join(sizes) + ')'}")
    lines.append(f"{plan.name}.outer = ({', '.join(f'{var}: {size}' for var, size in plan.outer)})")
    for name in plan.scratch:
        lines.append(f"{plan.name}.scratch {name} = {_layout(plan.buffers[name])}")
    if plan.product is not None:
        product = plan.product
        operands = ", ".join(_operand(ref) for ref in (product.left, product.right, product.bias) if ref is not None)
        lines.append(f"{plan.name}.product {product.result} = ({operands}), {product.precision}, {product.tile}")
    if plan.registers:
        lines.append(f"{plan.name}.registers = {_names(sorted(plan.registers))}")
    lines += _origin_lines(plan.origins)
    for number, stage in enumerate(plan.stages):
        lines += body_text(f"{plan.name}_stage{number}", stage.body)
    return "\n".join(lines)


def _extern_text(node: ExternNode, given: frozenset[str], users: dict[str, list[str]]) -> str:
    outputs = [*(name for name in node.outputs if name is not None), *node.mutates]
    reads = list(dict.fromkeys(ref.buffer for ref in tensor_refs((node.args, node.kwargs))))
    lines = [f"{node.name}: ExternKernelSchedulerNode({node.target})"]
    lines += listed(f"{node.name}.writes", [star_dependency(name) for name in outputs])
    lines += listed(f"{node.name}.unmet_dependencies", [star_dependency(n) for n in reads if n not in given])
    lines += listed(f"{node.name}.met_dependencies", [star_dependency(n) for n in reads if n in given])
    for name in outputs:
        lines += listed(f"{name}.users", users.get(name, []))
    if node.out_variant:
        lines.append(f"{node.name}.out_variant = {node.out_variant}")
    if node.reason:
        lines.append(f"{node.name}.reason = {node.reason}")
    return "\n".join([*lines, *_origin_lines(node.origins)])


def _origin_lines(origins: Iterable[Any]) -> list[str]:
    return [f"# {origin.comment}" for origin in origins]


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
        # The node's name, by which a report finds the statements of a node.
        origin = f"  # {statement.origin.fx_node}" if statement.origin is not None else ""
        call = f"ops.{statement.op}({', '.join(args)}){origin}"
        lines.append(f"{indent}{call}" if statement.op == "store" else f"{indent}{_value_name(statement)} = {call}")
    return lines


def _value_name(value: Value) -> str:
    return f"{value.op}_{value.id}"


def _layout(buffer: Buffer) -> str:
    return f"({buffer.dtype}, size={_tuple(buffer.size)}, stride={_tuple(buffer.stride)})"


def _operand(ref: TensorRef) -> str:
    return f"{ref.buffer} size={_tuple(ref.size)} stride={_tuple(ref.stride)}"


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _tuple(items: Iterable[Expr]) -> str:
    return f"({comma_separated(items)})"
