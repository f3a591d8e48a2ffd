"""Indices that are divided: the lanes of a vector cross at most one multiple of a divisor that is no smaller.

In: an index, and the loop variable that runs over lanes. Out: the two lines that the lanes lie on, up to the multiple
and from there on, so that nothing is divided lane by lane (views of padded tensors, relative positions).
"""

from __future__ import annotations

from argand.graph.sizes.expr import (
    Expr,
    FloorDiv,
    Mod,
    Var,
    as_int,
    coefficient,
    exact_divide,
    free_vars,
    substitute,
    to_c,
)
from argand.quick_dataclasses import dataclass

_LANE = Var("l")


@dataclass(frozen=True, slots=True)
class Crossing:
    """An index on both sides of a multiple of its divisor.

    Arguments:
        numerator: what is divided, in the first lane.
        divisor: by which; where it is a size that varies, it is to be compared with the lanes.
        quotient: stands for the quotient in the first lane.
        rest: for the remainder.
        before: the index in the first lane.
        after: what it would be there on the line behind the multiple.
        step: from lane to lane, on both lines.
    """

    numerator: Expr
    divisor: Expr
    quotient: Var
    rest: Var
    before: Expr
    after: Expr
    step: int

    @property
    def declaration(self) -> str:
        """The line that divides."""
        by = to_c(self.divisor)
        by = by if as_int(self.divisor) else f"max_i64({by}, 1)"  # where it is 0, nobody asks
        quotient = f"floor_div_i64({to_c(self.numerator)}, {by})"
        rest = to_c(self.numerator - self.quotient * self.divisor)
        return f"const i64 {self.quotient} = {quotient}, {self.rest} = {rest};"

    @property
    def lanes_before(self) -> str:
        """How many lanes there are before the multiple, or more."""
        return to_c(self.divisor - self.rest)


def crossing(index: Expr, var: Var, lanes: int, name: str) -> Crossing | None:
    """The two lines of `index`; None where there are more.

    Arguments:
        var: runs over lanes.
        lanes: of a vector.
        name: ends the variables' names.
    """
    divided = [
        atom
        for monomial, _ in index.poly
        for atom in monomial
        if isinstance(atom, (FloorDiv, Mod)) and var in atom.free
    ]
    if not divided:
        return None
    numerator, divisor, rest = divided[0].left, divided[0].right, Var(f"rest{name}")
    quotient = Var(f"quotient{name}")
    if (as_int(divisor) or lanes) < lanes or free_vars(divisor):
        return None
    before: dict[Expr, Expr] = {var: var + _LANE}
    after = dict(before)
    for atom in divided:
        step = coefficient(atom.left, var)
        if atom.right is not divisor or step is None or as_int(step) != 1:
            return None
        further = exact_divide(atom.left - numerator, divisor)
        if further is None:  # it crosses multiples elsewhere
            return None
        if isinstance(atom, Mod):
            before[atom], after[atom] = rest + _LANE, rest + _LANE - divisor
        else:
            before[atom] = quotient + further
            after[atom] = before[atom] + 1
    lines = [substitute(index, mapping) for mapping in (before, after)]
    steps = [coefficient(line, _LANE) for line in lines]
    step = steps[0]
    if step is None or as_int(step) is None or steps[1] is not step:
        return None
    first, behind = (substitute(line, {_LANE: 0}) for line in lines)
    return Crossing(numerator, divisor, quotient, rest, first, behind, as_int(step) or 0)
