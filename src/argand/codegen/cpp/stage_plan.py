"""What planning a stage decides and printing it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from argand.graph.sizes.expr import Expr, Var, free_vars
from argand.ir.loops import Value
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class StagePlan:
    """How one stage runs.

    Arguments:
        point: its own pointwise loops, outermost first; the vector variable, if among them, is last.
        reduce: reduction loops, outermost first; the vector variable, if among them, is last.
        sizes: of every loop variable, the kernel's outer ones included.
        vector: the variable that runs over lanes; None for scalar code.
        lanes: how many.
        narrow: int64 values that are computed in 32 bits.
        inside: `indirect` statements whose position is certainly in bounds.
        near: `indirect` statements whose position follows from loop variables alone.
        cost: estimated work, in vector operations, of one outer point.
        work: scalar operations of one outer point.
        transposed: loads and stores that go through tiles along the second last point loop.
        streamed: stores that bypass the caches.
    """

    point: tuple[Var, ...]
    reduce: tuple[Var, ...]
    sizes: dict[Var, Expr]
    vector: Var | None
    lanes: int
    narrow: set[Value] = field(default_factory=set)
    inside: set[Value] = field(default_factory=set)
    near: set[Value] = field(default_factory=set)
    cost: float = 0.0
    work: float = 0.0
    transposed: frozenset[Value] = frozenset()
    streamed: frozenset[Value] = frozenset()

    def looks_near(self, indirect: Mapping[Var, Value], index: Expr) -> bool:
        """Whether the positions that an index looks up follow from loop variables: neighbours, mostly."""
        looked_up = [indirect[var] for var in free_vars(index) if var in indirect]
        return bool(looked_up) and self.near.issuperset(looked_up)

    @property
    def horizontal(self) -> bool:
        """Whether lanes run along a reduction."""
        return self.vector in self.reduce
