"""Iteration spaces: affine index maps, and how the loops of two nests correspond.

Two nests that touch one buffer at matching addresses can run in one loop, even when one iterates [b*s, h] and the other
[b, s, h], or in another order: reading each index map as a mixed-radix number, with the strides as radices, gives the
splits after which the loops are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from argand.graph.sizes.expr import ONE, ZERO, Expr, FloorDiv, Mod, Var, exact_divide, substitute, sum_of
from argand.quick_dataclasses import dataclass
from argand.schedule.access import hint


@dataclass(slots=True)
class Affine:
    """`sum(coefficients[v] * v) + rest`, no loop variable in `rest`; variables with coefficient 0 are left out."""

    coefficients: dict[Var, Expr]
    rest: Expr


def affine(expr: Expr, dims: Mapping[Var, Expr]) -> Affine | None:
    """`expr` as an affine map of the loop variables `dims`; None when it is none, or holds other variables."""
    terms: dict[Var, list[Expr]] = {}
    rest: list[Expr] = []
    for monomial, scale in expr.poly:
        var: Var | None = None
        others: Expr = ONE
        for atom in monomial:
            if isinstance(atom, Var):
                if var is not None or atom not in dims:
                    return None
                var = atom
                continue
            if isinstance(atom, (FloorDiv, Mod)) and any(isinstance(a, Var) for a in atom.free):
                return None
            others = others * atom
        term = others * scale
        if var is None:
            rest.append(term)
        else:
            terms.setdefault(var, []).append(term)
    coefficients = {var: sum_of(parts) if len(parts) > 1 else parts[0] for var, parts in terms.items()}
    return Affine(coefficients, sum_of(rest) if rest else ZERO)


@dataclass(slots=True)
class Link:
    """One loop of a chain: `var` steps through memory by `stride`, `size` times."""

    stride: Expr
    size: Expr
    var: Var


@dataclass(slots=True)
class Unifier:
    """Finds how the loops of space B are loops of space A, splitting loops on either side where needed.

    Arguments:
        dims_a, dims_b: loop variables and their sizes.
        fresh: makes new loop variables.
    """

    dims_a: dict[Var, Expr]
    dims_b: dict[Var, Expr]
    fresh: FreshVars
    split_a: dict[Var, Expr] = field(default_factory=dict)  # old variable of A -> expression of new ones
    split_b: dict[Var, Expr] = field(default_factory=dict)
    matched: dict[Var, Var] = field(default_factory=dict)  # variable of B -> variable of A

    def anchor(self, index_a: Expr, index_b: Expr) -> bool:
        """Match loops through one buffer that A touches at `index_a` and B at `index_b`.

        Returns whether every loop that moves either index is matched now.
        """
        map_a = affine(substitute(index_a, self.split_a), self.dims_a)
        map_b = affine(substitute(index_b, self.split_b), self.dims_b)
        if map_a is None or map_b is None:
            return False
        left, right = dict(map_a.coefficients), dict(map_b.coefficients)
        for var_b, var_a in self.matched.items():
            if left.pop(var_a, ZERO) is not right.pop(var_b, ZERO):
                return False
        chain_a = _chain(left, self.dims_a)
        chain_b = _chain(right, self.dims_b)
        if map_a.rest is map_b.rest and self._align(chain_a, chain_b):
            return True
        self._align_outermost(chain_a, chain_b)
        return False

    def _align(self, chain_a: list[Link], chain_b: list[Link]) -> bool:
        plan = _refine(chain_a, chain_b)
        if plan is None:
            return False
        for side, chain, cuts in ((0, chain_a, plan[0]), (1, chain_b, plan[1])):
            for link, parts in zip(chain, cuts):
                self._split(side, link, parts)
        # After the splits, both chains have the same strides and sizes in the same order.
        after_a = [v for link in chain_a for v in self._parts(0, link.var)]
        after_b = [v for link in chain_b for v in self._parts(1, link.var)]
        self.matched.update(zip(after_b, after_a))
        return True

    def _align_outermost(self, chain_a: list[Link], chain_b: list[Link]) -> None:
        """A row of B may be a part of a row of A: match equal loops from the outermost on."""
        for link_a, link_b in zip(reversed(chain_a), reversed(chain_b)):
            if link_a.stride is not link_b.stride or link_a.size is not link_b.size:
                return
            self.matched[link_b.var] = link_a.var

    def _parts(self, side: int, var: Var) -> list[Var]:
        """Variables that a loop was split into, innermost first."""
        split = self.split_b if side else self.split_a
        parts = split.get(var)
        if parts is None:
            return [var]
        dims = self.dims_b if side else self.dims_a
        form = affine(parts, dims)
        assert form is not None  # a split is affine by construction
        return sorted(form.coefficients, key=lambda v: hint(form.coefficients[v]))

    def _split(self, side: int, link: Link, sizes: list[Expr]) -> None:
        if len(sizes) < 2:
            return
        dims, split = (self.dims_b, self.split_b) if side else (self.dims_a, self.split_a)
        scale: Expr = ONE
        terms = []
        del dims[link.var]
        for size in sizes:
            var = self.fresh.var()
            dims[var] = size
            terms.append(var * scale)
            scale = scale * size
        new = {link.var: sum_of(terms)}
        for old, expr in split.items():
            split[old] = substitute(expr, new)
        split.update(new)


class FreshVars:
    """Loop variables of groups, called after these and numbered.

    Their names begin with the number of a group, so that they do not depend on which groups are looked at, and sort in
    the order in which groups come to be.
    """

    __slots__ = ("_count", "_group")

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, group: int) -> None:
        """The next variables are those of a group."""
        self._group = group
        self._count = 0

    def var(self) -> Var:
        """A variable that the group does not have yet."""
        self._count += 1
        return Var(f"d{self._group:05}_{self._count - 1:02}")


def _chain(coefficients: dict[Var, Expr], dims: Mapping[Var, Expr]) -> list[Link]:
    links = [Link(stride, dims[var], var) for var, stride in coefficients.items()]
    links.sort(key=lambda link: hint(link.stride))
    return links


def _refine(chain_a: list[Link], chain_b: list[Link]) -> tuple[list[list[Expr]], list[list[Expr]]] | None:
    """Sizes (innermost first) into which to split each loop so that both chains become equal; None if impossible."""
    cuts_a: list[list[Expr]] = [[] for _ in chain_a]
    cuts_b: list[list[Expr]] = [[] for _ in chain_b]
    a = b = 0
    one: Expr = ONE
    stride_a = stride_b = size_a = size_b = one
    fresh_a = fresh_b = True
    while a < len(chain_a) and b < len(chain_b):
        if fresh_a:
            stride_a, size_a = chain_a[a].stride, chain_a[a].size
        if fresh_b:
            stride_b, size_b = chain_b[b].stride, chain_b[b].size
        if stride_a is not stride_b:
            return None
        if size_a is size_b:
            part, rest_a, rest_b = size_a, one, one
        elif (quotient := exact_divide(size_a, size_b)) is not None:
            part, rest_a, rest_b = size_b, quotient, one
        elif (quotient := exact_divide(size_b, size_a)) is not None:
            part, rest_a, rest_b = size_a, one, quotient
        else:
            return None
        cuts_a[a].append(part)
        cuts_b[b].append(part)
        fresh_a, fresh_b = rest_a is ONE, rest_b is ONE
        a, b = a + fresh_a, b + fresh_b
        stride_a, size_a = stride_a * part, rest_a
        stride_b, size_b = stride_b * part, rest_b
    return (cuts_a, cuts_b) if a == len(chain_a) and b == len(chain_b) else None


def is_dense_row(coefficients: Mapping[Var, Expr], dims: Mapping[Var, Expr]) -> Expr | None:
    """The length H when the loops step through every one of `range(H)` exactly once; None otherwise."""
    length: Expr = ONE
    for link in _chain(dict(coefficients), dims):
        if link.stride is not length:
            return None
        length = length * link.size
    return length
