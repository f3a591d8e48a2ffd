"""How far positions may reach, as expressions over size symbols: whether 32 bits do is known in each call.

Every product of an index expression is bounded by that of its factors' greatest values, and so is what the Triton
text computes on the way to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from argand.graph.sizes.expr import ONE, Const, Expr, FloorDiv, Mod, Sym, Var, as_int, product, sum_of
from argand.ir.kernel import KernelPlan
from argand.ir.loops import Buffer, LoopBody, statements_of
from argand.quick_dataclasses import dataclass

NARROW = 1 << 30  # below, positions have 32 bits; a block may reach beyond the end


@dataclass(frozen=True, slots=True)
class Reach:
    """What the positions of a kernel are bounded by.

    Arguments:
        terms: their bounds, as far as they depend on sizes; empty where these do not matter.
        wide: 32 bits are too few, or that cannot be told.
        sizes: symbols that are sizes, by name.
    """

    terms: tuple[Expr, ...]
    wide: bool
    sizes: frozenset[str]

    @property
    def varies(self) -> bool:
        """Whether a call's sizes say how many bits positions have."""
        return bool(self.terms) and not self.wide


class _Unbounded(Exception):
    """A number of the program's own, which may be anything, is part of a position."""


def reach_of(plan: KernelPlan) -> Reach:
    """How far the positions of a kernel may reach."""
    if plan.segments:  # which are small
        return Reach((), False, frozenset())
    sizes = {s.name for s in _symbols(plan) if s.minimum is not None and s.minimum >= 0}
    try:
        terms = dict.fromkeys(_terms(plan))
    except _Unbounded:
        return Reach((), True, frozenset())
    known = [as_int(term) for term in terms]
    wide = any(value is not None and value >= NARROW for value in known)
    return Reach(tuple(term for term, value in zip(terms, known) if value is None), wide, frozenset(sizes))


def _symbols(plan: KernelPlan) -> Iterable[Sym]:
    for expr in _expressions(plan):
        yield from (atom for atom in expr.free if isinstance(atom, Sym))


def _expressions(plan: KernelPlan) -> Iterable[Expr]:
    for _, size in plan.outer:
        yield size
    for stage in plan.stages:
        yield from (*stage.body.sizes, *stage.body.reduction_sizes)
        for statement in statements_of(stage.body):
            yield from (arg for arg in statement.args if isinstance(arg, Expr))


def _terms(plan: KernelPlan) -> Iterable[Expr]:
    for buffer in plan.buffers.values():
        yield from _bounds(_span(buffer), {})
    points = [size for _, size in plan.outer]
    for name in plan.scratch:
        yield from _bounds(product((*points, *plan.buffers[name].size)), {})
    for stage in plan.stages:
        body = stage.body
        yield from _bounds(product((*body.sizes, *body.reduction_sizes)), {})
        extents = _extents(plan, body)
        for statement in statements_of(body):
            for expr in statement.args:
                if isinstance(expr, Expr) and not isinstance(expr, Sym):  # which, alone, is a value
                    yield from _bounds(expr, extents)


def _extents(plan: KernelPlan, body: LoopBody) -> dict[Var, Expr]:
    extents: dict[Var, Expr] = dict(plan.outer)
    extents.update(zip(body.vars, body.sizes))
    extents.update(zip(body.reduction_vars, body.reduction_sizes))
    extents.update({Var(f"i{s.id}"): s.args[1] for s in statements_of(body) if s.op == "indirect"})
    return extents


def _span(buffer: Buffer) -> Expr:
    """At least the elements from the first to the last of a buffer."""
    return sum_of([ONE, *(size * step for size, step in zip(buffer.size, buffer.stride))])


def _bounds(expr: Expr, extents: Mapping[Var, Expr]) -> list[Expr]:
    """Bounds of an expression's absolute value, and of what it is computed from."""
    inner: list[Expr] = []
    return [_bound(expr, extents, inner), *inner]


def _bound(expr: Expr, extents: Mapping[Var, Expr], inner: list[Expr]) -> Expr:
    terms = []
    for monomial, scale in expr.poly:
        terms.append(product([Const(abs(scale)), *(_atom(atom, extents, inner) for atom in monomial)]))
    return sum_of(terms) if terms else ONE


def _atom(atom: Expr, extents: Mapping[Var, Expr], inner: list[Expr]) -> Expr:
    if isinstance(atom, Var):
        size = extents.get(atom)
        if size is None:
            raise _Unbounded
        return _bound(size, {}, inner)
    if isinstance(atom, Sym):
        if atom.minimum is None or atom.minimum < 0:
            raise _Unbounded
        return atom
    if isinstance(atom, (FloorDiv, Mod)):
        left, right = (_bound(arg, extents, inner) for arg in atom.args)
        inner += [left, right]
        return left if isinstance(atom, FloorDiv) else right
    raise _Unbounded
