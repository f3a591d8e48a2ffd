"""Final loops of a kernel: adjacent loops joined, the contiguous one innermost, variables named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from argand.graph.sizes.expr import ZERO, Expr, Var, coefficient, substitute
from argand.quick_dataclasses import dataclass
from argand.schedule.access import hint


@dataclass(slots=True)
class WeightedIndex:
    """An index expression with how many bytes depend on it; stores count more."""

    index: Expr
    weight: float
    is_store: bool = False


def coalesce(
    loops: Sequence[Var], dims: dict[Var, Expr], exprs: Sequence[Expr]
) -> tuple[list[Var], dict[Var, Expr], list[Expr]]:
    """Join loops p, q into one wherever every expression depends on `p * size(q) + q` only.

    Returns the remaining loops, the substitution (p -> 0; q, which takes the joint size in `dims`, stays), and the
    rewritten expressions.
    """
    left = list(loops)
    mapping: dict[Var, Expr] = {}
    now = list(exprs)
    changed = True
    while changed and len(left) > 1:
        changed = False
        for p in left:
            q = next((q for q in left if q is not p and _joinable(p, q, dims[q], now)), None)
            if q is None:
                continue
            # p*size + q is the new q: with p = 0 and q over the joint range every expression has the value it had.
            now = [_joined(expr, p, q, dims[q]) for expr in now]
            mapping[p] = ZERO
            dims[q] = dims[p] * dims[q]
            left.remove(p)
            changed = True
            break
    return left, mapping, now


def _joinable(p: Var, q: Var, size: Expr, exprs: Sequence[Expr]) -> bool:
    for expr in exprs:
        free = expr.free
        if p not in free and q not in free:
            continue
        if not expr.has_divmod:
            by_p, by_q = coefficient(expr, p), coefficient(expr, q)
            if by_p is None or by_q is None or by_p is not by_q * size:
                return False
        elif p in _joined(expr, p, q, size).free:
            return False
    return True


def _joined(expr: Expr, p: Var, q: Var, size: Expr) -> Expr:
    if p not in expr.free and q not in expr.free:
        return expr
    return substitute(expr, {q: q - size * p})


def loop_order(loops: Sequence[Var], indices: Sequence[WeightedIndex]) -> list[Var]:
    """Outermost first: large strides outside, the loop along which most bytes are contiguous inside."""
    stride: dict[Var, float] = {}
    unit: dict[Var, float] = {}
    for var in loops:
        total = near = 0.0
        for item in indices:
            by = coefficient(item.index, var)
            weight = item.weight * (4.0 if item.is_store else 1.0)
            if by is None:
                continue
            step = abs(hint(by)) if not _varies(by) else 1
            total += weight * step
            if step == 1:
                near += item.weight * (1.5 if item.is_store else 1.0)
            elif step == 0:
                near += 0.25 * item.weight
        stride[var], unit[var] = total, near
    rest = sorted(loops, key=lambda var: -stride[var])
    inner = max(rest, key=lambda var: (unit[var], rest.index(var)))
    rest.remove(inner)
    return [*rest, inner]


def _varies(expr: Expr) -> bool:
    return any(isinstance(atom, Var) for atom in expr.free)


def apply(mapping: Mapping[Var, Expr], expr: Expr) -> Expr:
    """`expr` with group variables replaced."""
    return substitute(expr, mapping)
