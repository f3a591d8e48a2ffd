"""Indices that are divided: the lanes of a vector cross at most one multiple of a divisor that is no smaller.

In: an index, and the loop variable that runs over lanes. Out: the two lines that the lanes lie on, up to the multiple
and from there on, so that nothing is divided lane by lane (views of padded tensors, relative positions).
"""

from __future__ import annotations

from argand.graph.sizes.expr import Expr, FloorDiv, Mod, Var, as_int, coefficient, substitute, to_c
from argand.quick_dataclasses import dataclass

_LANE = Var("l")


@dataclass(frozen=True, slots=True)
class Crossing:
    """An index on both sides of a multiple of its divisor.

    Arguments:
        numerator: what is divided, in the first lane.
        divisor: by which.
        rest: stands for the remainder in the first lane.
        before: the index in the first lane.
        after: what it would be there on the line behind the multiple.
        step: from lane to lane, on both lines.
    """

    numerator: Expr
    divisor: int
    rest: Var
    before: Expr
    after: Expr
    step: int

    @property
    def declaration(self) -> str:
        """The line that computes the remainder."""
        return f"const i64 {self.rest} = floor_mod_i64({to_c(self.numerator)}, {self.divisor});"

    @property
    def lanes_before(self) -> str:
        """How many lanes there are before the multiple, or more."""
        return f"{self.divisor} - {self.rest}"


def crossing(index: Expr, var: Var, lanes: int, name: str) -> Crossing | None:
    """The two lines of `index`; None where there are more.

    Arguments:
        var: runs over lanes.
        lanes: of a vector.
        name: of the remainder's variable.
    """
    divided = [
        atom
        for monomial, _ in index.poly
        for atom in monomial
        if isinstance(atom, (FloorDiv, Mod)) and var in atom.free
    ]
    if not divided:
        return None
    numerator, divisor, rest = divided[0].left, as_int(divided[0].right), Var(name)
    if divisor is None or divisor < lanes:
        return None
    before: dict[Expr, Expr] = {var: var + _LANE}
    after = dict(before)
    for atom in divided:
        step = coefficient(atom.left, var)
        apart = atom.left - numerator
        if as_int(atom.right) != divisor or step is None or as_int(step) != 1:
            return None
        if any(scale % divisor for _, scale in apart.poly):  # it crosses multiples elsewhere
            return None
        if isinstance(atom, Mod):
            before[atom], after[atom] = rest + _LANE, rest + _LANE - divisor
        else:
            before[atom] = (atom.left - rest) // divisor
            after[atom] = before[atom] + 1
    lines = [substitute(index, mapping) for mapping in (before, after)]
    steps = [coefficient(line, _LANE) for line in lines]
    step = steps[0]
    if step is None or as_int(step) is None or steps[1] is not step:
        return None
    first, behind = (substitute(line, {_LANE: 0}) for line in lines)
    return Crossing(numerator, divisor, rest, first, behind, as_int(step) or 0)
