"""Prints a loop program: `ir_pre_fusion.txt`."""

from __future__ import annotations

from typing import Any

from argand.graph.sizes.expr import Expr, Var
from argand.ir.loops import (
    ExternNode,
    LoopBlock,
    LoopBody,
    LoopNode,
    Node,
    Program,
    TensorRef,
    Value,
    statements_of,
    tensor_refs,
)
from argand.ir.text import listed, memory_dependency, python_list, python_tuple, star_dependency


def dump(program: Program) -> str:
    """Every node of `program` as text."""
    users = _users(program)
    return "\n\n\n".join(dump_node(program, node, users) for node in program.nodes) + "\n"


def dump_node(program: Program, node: Node, users: dict[str, list[str]] | None = None) -> str:
    """One node as text: what it writes and reads, who uses it, its loops and its body."""
    users = _users(program) if users is None else users
    if isinstance(node, ExternNode):
        return _dump_extern(program, node, users)
    name = (*node.outputs, *node.mutates, node.name)[0]
    if node.mutates:
        name = f"{name}_{node.name}"
    reads, writes = _dependencies(node.body)
    met = [dep for buffer, dep in reads if not _is_temp(program, buffer)]
    unmet = [dep for buffer, dep in reads if _is_temp(program, buffer)]
    unmet += [f"WeakDep('{buffer}')" for buffer in node.mutates]
    body = node.body
    buffer = program.buffers.get((*node.outputs, *node.mutates, "")[0])
    device = "?" if buffer is None else buffer.device
    lines = [
        f"{name}: SchedulerNode(ComputedBuffer)",
        *listed(f"{name}.writes", [dep for _, dep in writes]),
        *listed(f"{name}.unmet_dependencies", unmet),
        *listed(f"{name}.met_dependencies", met),
        *listed(f"{name}.users", users.get((*node.outputs, *node.mutates, name)[0], [])),
        f"{name}.group.device = {device}",
        f"{name}.group.iteration = ({python_tuple(body.sizes)}, {python_tuple(body.reduction_sizes)})",
        f"{name}.sizes = ({python_list(body.sizes)}, {python_list(body.reduction_sizes)})",
        *(f"# {origin.fx_code}" for origin in node.origins),
        *_dump_body(name, body),
    ]
    return "\n".join(lines)


def _dump_extern(program: Program, node: ExternNode, users: dict[str, list[str]]) -> str:
    name = next((output for output in node.outputs if output is not None), node.name)
    reads = dict.fromkeys(ref.buffer for ref in tensor_refs((node.args, node.kwargs)))
    lines = [
        f"{name}: ExternKernelSchedulerNode(ExternKernel)",
        *listed(f"{name}.writes", [star_dependency(output) for output in node.outputs if output is not None]),
        *listed(f"{name}.unmet_dependencies", [star_dependency(r) for r in reads if _is_temp(program, r)]),
        *listed(f"{name}.met_dependencies", [star_dependency(r) for r in reads if not _is_temp(program, r)]),
        *listed(f"{name}.users", users.get(name, [])),
        f"{name}.node.kernel = {node.out_variant or node.target}",
        f"{name}.node.args = ({', '.join(_argument(arg) for arg in node.args)})",
    ]
    if node.kwargs:
        lines.append(f"{name}.node.kwargs = {{{', '.join(f'{k}: {_argument(v)}' for k, v in node.kwargs.items())}}}")
    if node.reason:
        lines.append(f"{name}.node.reason = {node.reason!r}")
    lines += [f"# {origin.fx_code}" for origin in node.origins]
    return "\n".join(lines)


def _is_temp(program: Program, name: str) -> bool:
    buffer = program.buffers.get(name)  # a program that the verifier refuses may lack it
    return buffer is None or buffer.kind == "temp"


def _argument(arg: Any) -> str:
    if isinstance(arg, TensorRef):
        layout = f"size={python_list(arg.size)}, stride={python_list(arg.stride)}, offset={arg.offset}"
        return f"TensorRef('{arg.buffer}', {layout})"
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(_argument(item) for item in arg)}]"
    return repr(arg)


def _users(program: Program) -> dict[str, list[str]]:
    users: dict[str, dict[str, None]] = {}
    for node in program.nodes:
        names = [name for name in (*node.outputs, *node.mutates) if name is not None]
        label = names[0] if names else node.name
        if isinstance(node, ExternNode):
            read = {ref.buffer for ref in tensor_refs((node.args, node.kwargs))}
        else:
            read = {buffer for buffer, _ in _dependencies(node.body)[0]}
        for buffer in read:
            inplace = not isinstance(node, ExternNode) and _reads_where_it_writes(node, buffer)
            users.setdefault(buffer, {})[f"NodeUser(node={label}, can_inplace={inplace})"] = None
    for ref in (*program.outputs, *(ref for _, ref in program.mutations)):
        if isinstance(ref, TensorRef):
            users.setdefault(ref.buffer, {})["NodeUser(node=OUTPUT, can_inplace=False)"] = None
    return {name: list(texts) for name, texts in users.items()}


def _reads_where_it_writes(node: LoopNode, buffer: str) -> bool:
    """Whether a node could store its result over a buffer that it reads: each element is read where it is written."""
    if node.mutates or node.body.reduction_vars:
        return False
    statements = statements_of(node.body)
    written = {s.args[1] for s in statements if s.op == "store"}
    return len(written) == 1 and all(s.args[1] in written for s in statements if s.op == "load" and s.args[0] == buffer)


def _dependencies(body: LoopBody) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(buffer, printed dependency) of the loads and stores of a body, each once."""
    reads: dict[tuple[str, str], None] = {}
    writes: dict[tuple[str, str], None] = {}
    sizes = dict(zip((*body.vars, *body.reduction_vars), (*body.sizes, *body.reduction_sizes)))
    for statement in statements_of(body):
        if statement.op in ("load", "store"):
            buffer, index = statement.args[:2]
            dep = memory_dependency(buffer, index, sizes)
            (reads if statement.op == "load" else writes)[buffer, dep] = None
    return list(reads), list(writes)


class _BodyPrinter:
    """Names the statements of a body as the reference documents do: `load`, `load_1`, `add`, ..."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.indices: dict[Expr, str] = {}
        self.blocks: list[str] = []

    def fresh(self, base: str) -> str:
        count = self.counts.get(base, 0)
        self.counts[base] = count + 1
        return f"{base}_{count}" if count else base

    def index(self, expr: Expr) -> str:
        return self.indices.setdefault(expr, f"index{len(self.indices)}")

    def statements(self, statements: list[Value], result: Value | None) -> list[str]:
        lines: list[str] = []
        last = ""
        for statement in statements:
            args = [self.argument(arg, lines) for arg in statement.args]
            if statement.op == "reduction":
                args = [str(statement.dtype), str(statement.args[1].dtype), *args]
            last = self.names[statement.id] = self.fresh(statement.op)
            lines.append(f"{last} = ops.{statement.op}({', '.join(args)})")
        lines.append(f"return {last if result is None else self.names[result.id]}")
        return lines

    def argument(self, arg: Any, lines: list[str]) -> str:
        if isinstance(arg, Value):
            return self.names.get(arg.id, f"%{arg.id}")
        if isinstance(arg, Expr):
            name = self.fresh("get_index")
            lines.append(f"{name} = self.get_index('{self.index(arg)}')")
            return name
        if isinstance(arg, LoopBlock):
            label = f"masked_subblock{len(self.blocks) + 1}"
            self.blocks.append("")
            body = "\n".join(f"        {line}" for line in self.statements(arg.statements, arg.result))
            self.blocks[int(label[15:]) - 1] = f"    def {label}(self, ops):\n{body}"
            return f"self.{label}"
        return repr(arg) if isinstance(arg, str) else str(arg)


def _dump_body(name: str, body: LoopBody) -> list[str]:
    printer = _BodyPrinter()
    lines = [f"        {line}" for line in printer.statements(body.statements, None)]
    pairs: list[tuple[Var, Expr]] = list(zip((*body.vars, *body.reduction_vars), (*body.sizes, *body.reduction_sizes)))
    return [
        f"class {name}_loop_body:",
        f"    var_ranges = {{{', '.join(f'{var}: {size}' for var, size in pairs)}}}",
        *(f"    {label} = {expr}" for expr, label in printer.indices.items()),
        "    def body(self, ops):",
        *lines,
        *(block for block in printer.blocks),
    ]
