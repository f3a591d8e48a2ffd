"""A text that is equal for kernels that do the same to different buffers."""

from __future__ import annotations

from typing import Any

from argand.graph.sizes.expr import Expr, Var, substitute
from argand.ir.kernel import KernelPlan
from argand.ir.loops import LoopBlock, Value


def signature(plan: KernelPlan) -> str:
    """Everything that code generation reads of a plan, with buffers by argument position and values renumbered.

    Two plans with equal signatures may share one compiled function, called with each one's own arguments.
    """
    names: dict[str, str] = {}
    for letter, group in (
        ("I", plan.inputs),
        ("O", plan.outputs),
        ("S", plan.scratch),
        ("R", [name for name in plan.buffers if name in plan.registers]),
    ):
        names.update({name: f"{letter}{number}" for number, name in enumerate(group)})
    parts = [f"{names[n]}:{b.dtype}:{b.device}:{b.size if n in plan.scratch else ''}" for n, b in plan.buffers.items()]
    parts += [f"{var}<{size}" for var, size in plan.outer]
    parts += [f"symbols {plan.symbols}"]
    for segment in plan.segments:
        pairs = [f"{names[one]}={names[other]}" for one, other in segment.buffers.items()]
        parts.append(f"segment {','.join(pairs)} {sorted(segment.numbers.items())}")
    if plan.product is not None:
        product = plan.product
        refs = [ref for ref in (product.left, product.right, product.bias) if ref is not None]
        operands = [(names[ref.buffer], ref.size, ref.stride, ref.offset) for ref in refs]
        parts += [f"product {operands} {names[product.result]} {product.precision} {product.tile}"]
    for stage in plan.stages:
        body = stage.body
        parts.append(f"stage {stage.inner} {body.vars} {body.sizes} {body.reduction_vars} {body.reduction_sizes}")
        _statements(body.statements, {}, names, parts)
    return "\n".join(parts)


def _statements(statements: list[Value], known: dict[int, int], names: dict[str, str], parts: list[str]) -> None:
    for statement in statements:
        texts = [_arg(arg, known, names, parts) for arg in statement.args]
        known[statement.id] = len(known)
        parts.append(f"{known[statement.id]}={statement.op}({','.join(texts)}){statement.dtype}")


def _arg(arg: Any, known: dict[int, int], names: dict[str, str], parts: list[str]) -> str:
    if isinstance(arg, Value):
        return f"v{known[arg.id]}"
    if isinstance(arg, Expr):
        indirect: dict[Any, Expr] = {}
        for atom in arg.free:
            if isinstance(atom, Var) and atom.name[0] == "i" and atom.name[1:].isdigit():
                indirect[atom] = Var(f"i{known[int(atom.name[1:])]}")
        return str(substitute(arg, indirect))
    if isinstance(arg, LoopBlock):
        parts.append("{")
        _statements(arg.statements, known, names, parts)
        parts.append(f"}}{known[arg.result.id]}")
        return "block"
    if isinstance(arg, str):
        return names.get(arg, arg)
    if isinstance(arg, float):
        return arg.hex()
    if isinstance(arg, (tuple, list)):
        return "(" + ",".join(_arg(item, known, names, parts) for item in arg) + ")"
    return f"{type(arg).__name__} {arg}"
