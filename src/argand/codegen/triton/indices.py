"""Index expressions as Triton source: integers, of 32 bits where nothing can be larger, else of 64."""

from __future__ import annotations

from argand.graph.sizes.expr import Expr, Var, is_natural
from argand.graph.sizes.expr_nodes import Add, Const, FloorDiv, Mod, Mul


def index_text(expr: Expr, wide: bool = False) -> str:
    """The source of an index expression.

    Arguments:
        expr: over variables that are never negative, and symbols.
        wide: make variables 64 bits wide first.
    """
    if isinstance(expr, Const):
        return str(expr.value)
    if isinstance(expr, Var):
        return f"{expr.name}.to(tl.int64)" if wide else expr.name
    if isinstance(expr, (FloorDiv, Mod)):
        left, right = (_factor(arg, wide) for arg in expr.args)
        if is_natural(expr.args[0]) and is_natural(expr.args[1]):
            return f"({left} {'//' if isinstance(expr, FloorDiv) else '%'} {right})"
        name = "floor_quotient" if isinstance(expr, FloorDiv) else "floor_remainder"
        return f"{name}({left}, {right})"
    if isinstance(expr, Mul):
        return "*".join(_factor(arg, wide) for arg in expr.args)
    if isinstance(expr, Add):
        return " + ".join(index_text(arg, wide) for arg in expr.args).replace("+ -", "- ")
    return str(expr)


def _factor(expr: Expr, wide: bool) -> str:
    text = index_text(expr, wide)
    return f"({text})" if isinstance(expr, (Add, Mul)) or text.startswith("-") else text
