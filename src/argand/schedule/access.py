"""What a loop node reads and writes, and the dependencies that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from math import prod
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph import compat
from argand.graph.operators import data_checks
from argand.graph.sizes.expr import ZERO, Const, Expr, Sym, Var, evaluate
from argand.graph.sizes.hints import likely
from argand.ir.kernel import KernelPlan, Step
from argand.ir.loops import (
    Buffer,
    ExternNode,
    LoopBlock,
    LoopNode,
    Node,
    Program,
    Value,
    checks_values,
    statements_of,
    tensor_refs,
)
from argand.quick_dataclasses import dataclass

# A size symbol's value is not known here; decisions of cost (never of correctness) assume this one.
SYMBOL_HINT = 96


def hint(expr: Expr) -> int:
    """The value of an expression of sizes, with a likely number in place of every symbol."""
    if isinstance(expr, Const):
        return expr.value
    env = {atom.name: likely(atom.name, SYMBOL_HINT) for atom in expr.free if isinstance(atom, Sym)}
    return int(evaluate(expr, env))


def hint_numel(buffer: Buffer) -> int:
    """Typical number of elements."""
    return prod([size.value if size.__class__ is Const else hint(size) for size in buffer.size])


def hint_bytes(buffer: Buffer) -> int:
    """Typical size in bytes; along what is expanded there is one element."""
    total = itemsize(buffer.dtype)
    for size, stride in zip(buffer.size, buffer.stride):
        if stride is not ZERO:
            total *= size.value if size.__class__ is Const else hint(size)
    return total


def itemsize(dtype: torch.dtype) -> int:
    """Bytes of one element."""
    return int(dtype.itemsize)


def has_effect(node: Node) -> bool:
    """Whether an extern call must stay, in order, even when nobody reads its results."""
    return isinstance(node, ExternNode) and compat.has_effect(node.target, node.args, node.kwargs)


def keeps_order(node: Node) -> bool:
    """Whether a node runs after all before it that have effects. What waits for a collective runs when that is read."""
    return isinstance(node, ExternNode) and has_effect(node) and not compat.waits(node.target)


def must_stay(node: Node) -> bool:
    """Whether a node must run even when nobody reads its results: it has an effect, or raises for some data."""
    if isinstance(node, ExternNode):
        return has_effect(node) or data_checks.may_raise(node.target, node.args, node.kwargs)
    return checks_values(node.body.statements)


@dataclass(slots=True)
class Accesses:
    """Buffers that a node reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def accesses(node: Node) -> Accesses:
    """Names of the buffers that `node` reads and writes, each once, in order of first use."""
    if isinstance(node, ExternNode):
        reads = [ref.buffer for ref in tensor_refs((node.args, node.kwargs))]
        writes = [name for name in node.outputs if name is not None]
        return Accesses(_unique((*reads, *node.mutates)), _unique((*writes, *node.mutates)))
    reads, writes = [], []
    for statement in statements_of(node.body):
        if statement.op == "load":
            reads.append(statement.args[0])
        elif statement.op == "store":
            writes.append(statement.args[0])
    return Accesses(_unique((*reads, *node.mutates)), _unique((*writes, *node.mutates)))


def touched(step: Step) -> tuple[set[str], set[str]]:
    """Buffers that a step reads, and those that it writes."""
    if isinstance(step, KernelPlan):
        return set(step.inputs), set(step.outputs)
    reads = {ref.buffer for ref in tensor_refs((step.args, step.kwargs))}
    return reads, {*step.mutates, *(name for name in step.outputs if name is not None)}


def device_of(access: Accesses, buffers: Mapping[str, Buffer], name: str) -> torch.device:
    """Where a loop node runs: the device of all its buffers.

    Raises:
        InternalError: they are on several.
    """
    devices = {buffers[each].device for each in (*access.reads, *access.writes)}
    if len(devices) != 1:
        listed = ", ".join(sorted(map(str, devices))) or "no device"
        raise InternalError(f"the buffers of loop node {name} are on {listed}")
    return devices.pop()


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(slots=True)
class Graph:
    """Nodes of a program that are needed, with their dependencies.

    Arguments:
        nodes: in program order.
        accesses: of each node.
        deps: for each node, positions of the nodes that must run before it.
        writers: for each buffer, positions of the nodes that write it.
        readers: for each buffer, positions of the nodes that read it.
        kept: buffers that outlive the program's nodes (outputs, results of mutations, inputs, constants).
        due: for each node, the first group of outputs that leaves a run early and needs it to have run.
    """

    nodes: list[Node]
    accesses: list[Accesses]
    deps: list[set[int]] = field(default_factory=list)
    writers: dict[str, list[int]] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    due: list[int] = field(default_factory=list)


def build_graph(program: Program) -> Graph:
    """Drop dead nodes and find the dependencies of the others.

    Raises:
        InternalError: a node reads a buffer that nothing wrote before it.
    """
    kept = {ref.buffer for ref in tensor_refs(program.outputs)}
    for name, ref in program.mutations:
        kept.update((name, ref.buffer))
    of_nodes = [accesses(node) for node in program.nodes]
    nodes, used = _alive(program.nodes, of_nodes, kept)
    graph = Graph(nodes, used, kept=kept)
    given = {*program.inputs, *program.constants}
    kept |= given
    readers_now: dict[str, list[int]] = {}
    last_effect: int | None = None
    for position, (node, access) in enumerate(zip(nodes, used)):
        deps: set[int] = set()
        mutated = set(node.mutates)
        for name in access.reads:
            writers = graph.writers.get(name)
            if writers:
                deps.update(writers)
            elif name not in given and name not in access.writes and not is_empty(program.buffers[name]):
                raise InternalError(f"node {node.name} reads buffer {name}, which nothing has written")
            readers_now.setdefault(name, []).append(position)
            graph.readers.setdefault(name, []).append(position)
        for name in access.writes:
            if name in mutated:
                deps.update(readers_now.pop(name, ()))
            graph.writers.setdefault(name, []).append(position)
        if keeps_order(node):
            if last_effect is not None:
                deps.add(last_effect)
            last_effect = position
        deps.discard(position)
        graph.deps.append(deps)
    graph.due = _due(graph, program)
    return graph


def _due(graph: Graph, program: Program) -> list[int]:
    due = [len(program.arrivals)] * len(graph.nodes)
    for number, (outputs, inputs) in enumerate(program.arrivals):
        names = [ref.buffer for ref in tensor_refs([program.outputs[place] for place in outputs])]
        pending = [position for name in names for position in graph.writers.get(name, ())]
        pending += [position for place in inputs for position in graph.readers.get(program.inputs[place], ())]
        while pending:
            position = pending.pop()
            if due[position] > number:
                due[position] = number
                pending += graph.deps[position]
    return due


def _alive(nodes: list[Node], of_nodes: list[Accesses], kept: set[str]) -> tuple[list[Node], list[Accesses]]:
    needed = set(kept)
    alive = []
    for position in reversed(range(len(nodes))):
        if _does_nothing(nodes[position]):
            continue
        if not needed.isdisjoint(of_nodes[position].writes) or must_stay(nodes[position]):
            needed.update(of_nodes[position].reads)
            alive.append(position)
    alive.reverse()
    return [nodes[p] for p in alive], [of_nodes[p] for p in alive]


def _does_nothing(node: Node) -> bool:
    """A loop nest without points: what it writes has no elements."""
    return isinstance(node, LoopNode) and any(size == 0 for size in node.body.sizes)


def is_empty(buffer: Buffer) -> bool:
    """Whether a buffer certainly has no elements: it needs no writer."""
    return any(size == 0 for size in buffer.size)


def operands(statement: Value) -> set[int]:
    """Ids of the values that a statement uses, through index expressions and blocks too (block-local ones included)."""
    used: set[int] = set()

    def visit(arg: Any) -> None:
        if isinstance(arg, Value):
            used.add(arg.id)
        elif isinstance(arg, Expr):
            for atom in arg.free:
                if isinstance(atom, Var) and atom.name[0] == "i" and atom.name[1:].isdigit():
                    used.add(int(atom.name[1:]))
        elif isinstance(arg, LoopBlock):
            for inner in arg.statements:
                for item in inner.args:
                    visit(item)
            visit(arg.result)
        elif isinstance(arg, (tuple, list)):
            for item in arg:
                visit(item)

    for arg in statement.args:
        visit(arg)
    return used


def is_fusible(node: Node) -> bool:
    """Whether a node may share a kernel with others: nodes that update buffers in place, or store twice, stay alone."""
    if not isinstance(node, LoopNode) or node.mutates:
        return False
    stores = [statement.args[0] for statement in node.body.statements if statement.op == "store"]
    return len(stores) == len(set(stores))
