"""The rules of an ATen graph, checked: functional, in order, with metadata that agrees with what each op makes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from argand.errors import VerificationError
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.metas import Many
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.nodes.printing import describe
from argand.graph.nodes.program import AtenProgram
from argand.passes.layout import same_memory


def verify(program: AtenProgram, *, after: str = "") -> None:
    """Check every rule that `AtenProgram` promises.

    Raises:
        VerificationError: naming the rule, the node and its neighbourhood.
    """
    seen: set[fx.Node] = set()
    names: set[str] = set()
    builder = Builder(program.graph, program.specs or SpecTable())
    nodes = list(program.graph.nodes)
    for node in nodes:
        for arg in node.all_input_nodes:
            _rule(arg in seen, f"reads {arg.name} before it is computed", node, after)
        _rule(node.name not in names, "shares its name with another node", node, after)
        seen.add(node)
        names.add(node.name)
        if node.op != "output":
            _rule("val" in node.meta and "device" in node.meta, "has no metadata", node, after)
        if node.op == "call_function":
            _check_call(node, builder, after)
        elif node.op == "get_attr":
            _rule(node.target in program.constants, "names a constant that the program does not have", node, after)
    _check_frame(program, nodes, after)


def _check_frame(program: AtenProgram, nodes: list[fx.Node], after: str) -> None:
    output = nodes[-1]
    _rule(output.op == "output" and isinstance(output.args[0], tuple), "is not an output of a tuple", output, after)
    results = output.args[0] if isinstance(output.args[0], tuple) else ()
    placeholders = program.placeholders
    _rule(len(placeholders) == len(program.inputs), "the graph has other inputs than the program", output, after)
    for node, spec in zip(placeholders, program.inputs):
        _rule(node.name == spec.name, f"is called {spec.name} by the program", node, after)
        _rule(tuple(node.meta["val"].shape) == spec.spec.size, "has another shape than its input", node, after)
    for node in results:
        _rule(isinstance(node, fx.Node), f"returns {node!r}", output, after)
        _rule(isinstance(node.meta["val"], torch.Tensor), "is returned and is not a tensor", node, after)
    _rule(len(set(results)) == len(results), "returns one value twice", output, after)
    for number in [*[m.output for m in program.mutations], *program.handed_over]:
        _rule(0 <= number < len(results), f"has no result {number}", output, after)


def _check_call(node: fx.Node, builder: Builder, after: str) -> None:
    if node.target is operator.getitem:
        source: Any = node.args[0]
        _same(node, source.meta["val"][node.args[1]], after)
        return
    _rule(isinstance(node.target, torch._ops.OpOverload), "does not call an ATen overload", node, after)
    _rule(not node.target._schema.is_mutable, "writes to its arguments", node, after)
    if not node.target._schema.returns:
        return
    try:
        inferred = builder.infer(node.target, node.args, dict(node.kwargs))
    except Exception as error:
        _rule(False, f"refuses its arguments: {error}", node, after)
    else:
        _same(
            node,
            inferred.meta if inferred.__class__ is Spec else inferred.metas if inferred.__class__ is Many else inferred,
            after,
        )


def _same(node: fx.Node, val: Any, after: str) -> None:
    held = node.meta["val"]
    if isinstance(val, (tuple, list)) and isinstance(held, (tuple, list)) and len(val) == len(held):
        agrees = all(_agree(a, b) for a, b in zip(val, held))
    else:
        agrees = _agree(val, held)
    _rule(agrees, f"makes {describe(val)}, but its metadata says {describe(held)}", node, after)


def _agree(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b)
    return a.dtype is b.dtype and same_memory(a, b)


def _rule(holds: bool, what: str, node: fx.Node, after: str) -> None:
    if holds:
        return
    around = [str(other.format_node() or other.op) for other in (node.prev, node, node.next) if other.op != "root"]
    where = f" after {after}" if after else ""
    raise VerificationError("\n  ".join([f"ATen graph{where}: node {node.name} {what}", *around]))
