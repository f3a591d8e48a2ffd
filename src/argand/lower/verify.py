"""Checks that a loop program is well formed; run by tests after lowering and after every later rewrite."""

from __future__ import annotations

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr, Sym, Var
from argand.ir.loops import ExternNode, LoopBlock, LoopNode, Program, Value, element_dtype, tensor_refs
from argand.ir.operations import BINARY, COMPARISONS, PREDICATES, UNARY
from argand.lower.dump import dump_node
from argand.lower.ops import REDUCTIONS, SCANS

OPS = frozenset(
    (
        "load", "store", "constant", "index_expr", "indirect", "divisor", "to_dtype", "bitcast", "masked", "where",
        "fma", "reduction", "scan",
    )
).union(UNARY, BINARY, COMPARISONS, PREDICATES)  # fmt: skip


def verify(program: Program) -> None:
    """Raise InternalError, naming the node and its neighbourhood, if `program` breaks a rule of `ir.loops`.

    Rules: a buffer is written before it is read, created once, and exists; statements are defined before use, in an
    enclosing scope, with known ops and matching dtypes; index expressions use the loop's variables only; outputs exist.
    """
    written = {name for name in program.buffers if program.buffers[name].kind != "temp"}
    for node in program.nodes:
        try:
            if isinstance(node, LoopNode):
                _verify_loop(program, node, written)
            else:
                for ref in tensor_refs((node.args, node.kwargs)):
                    _require(ref.buffer in written, f"reads {ref.buffer}, which nothing has written")
            for name in node.mutates:
                _require(name in written, f"updates {name}, which nothing has created")
            for created in node.outputs:
                if created is not None:
                    _require(created in program.buffers, f"creates {created}, which is not declared")
                    _require(created not in written, f"creates {created} a second time")
                    written.add(created)
        except InternalError as error:
            raise InternalError(f"{node.name}: {error.cause}\n{_show(program, node)}") from None
    for ref in tensor_refs((program.outputs, [ref for _, ref in program.mutations])):
        _require(ref.buffer in written, f"the output {ref.buffer} is never written")


def _verify_loop(program: Program, node: LoopNode, written: set[str]) -> None:
    body = node.body
    _require(len(body.vars) == len(body.sizes), "as many variables as sizes")
    _require(len(body.reduction_vars) == len(body.reduction_sizes), "as many reduction variables as sizes")
    known: set[Expr] = {*body.vars, *body.reduction_vars}
    stored: set[str] = set()

    def visit(statements: list[Value], outer: set[int]) -> set[int]:
        seen = set(outer)
        for value in statements:
            _require(value.op in OPS, f"unknown op {value.op!r}")
            for arg in value.args:
                if isinstance(arg, Value):
                    _require(arg.id in seen, f"{value.op} uses %{arg.id} before it is defined")
                elif isinstance(arg, Expr):
                    loose = [atom for atom in arg.free if not isinstance(atom, Sym) and atom not in known]
                    _require(not loose, f"{value.op} uses {loose}, which are not variables of the loop")
                elif isinstance(arg, LoopBlock):
                    inside = visit(arg.statements, seen)
                    _require(arg.result.id in inside, "a masked block's result is not in it")
            _verify_statement(program, value, node, written, stored)
            if value.op == "indirect":
                known.add(Var(f"i{value.id}"))
            seen.add(value.id)
        return seen

    visit(body.statements, set())
    _require(
        stored == {*node.outputs, *node.mutates}, f"stores {sorted(stored)}, declares {node.outputs} {node.mutates}"
    )


def _verify_statement(program: Program, value: Value, node: LoopNode, written: set[str], stored: set[str]) -> None:
    if value.op == "load":
        _require(value.args[0] in written, f"reads {value.args[0]}, which nothing has written")
        _require(
            value.dtype is element_dtype(program.buffers[value.args[0]].dtype),
            f"{value.args[0]} is read with another dtype",
        )
    elif value.op == "store":
        _require(
            value.args[2].dtype is element_dtype(program.buffers[value.args[0]].dtype),
            f"{value.args[0]} is stored with another dtype",
        )
        stored.add(value.args[0])
    elif value.op == "fma":
        _require(len({arg.dtype for arg in value.args}) == 1, "fma of several dtypes")
    elif value.op in BINARY or value.op in COMPARISONS:
        _require(value.args[0].dtype is value.args[1].dtype, f"{value.op} of two dtypes")
    elif value.op == "reduction":
        _require(value.args[0] in REDUCTIONS, f"unknown reduction {value.args[0]!r}")
        _require(bool(node.body.reduction_vars), "a reduction in a loop without reduction variables")
    elif value.op == "scan":
        _require(value.args[0] in SCANS, f"unknown scan {value.args[0]!r}")
        _require(bool(node.body.reduction_vars), "a scan in a loop without reduction variables")


def _show(program: Program, culprit: LoopNode | ExternNode) -> str:
    at = program.nodes.index(culprit)
    return "\n".join(dump_node(program, node) for node in program.nodes[max(at - 1, 0) : at + 1])


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise InternalError(rule)
