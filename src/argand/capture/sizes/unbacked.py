"""Unbacked symbols: numbers and sizes that depend on the data of tensors (`u0`, `u1`, ...).

Capture knows nothing of their values. What stands in for a value, so that sizes can be fitted, is arbitrary, and
nothing that the program sees may depend on it: a comparison is answered only when facts prove it, and whatever needs
the number ends the graph. Nor are the stand-ins (large, of many divisors) trusted for what small sizes do: each
operation on such sizes is tried with sizes 0, 1, 2, ... too, and a size that does not follow its formula there becomes
a symbol itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from argand import errors
from argand.capture.facts.interfaces import Dynamics
from argand.capture.facts.values.symbolic import SymbolicBool
from argand.capture.facts.values.symbols import Origin
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.intervals import UNBOUNDED, Interval, intersection, plus, proves, times
from argand.graph.sizes.relations import Number, Relation, split_constant

_STEP = 840  # stand-ins are divisible by all numbers up to 8
_FIRST = 11
_LEAST = {"gt": 1, "ge": 0}
_MOST = {"lt": -1, "le": 0}


class Unbacked:
    """The unbacked symbols of a capture, and what is known of them.

    Fields:
        origins: where each symbol comes from.
        spans: expression without constant part -> where its values lie, from `torch._check` and operations.
        unequal: expressions that are not 0.
        memo: what was asked of a tensor before -> the answer, as long as nothing was written.
    """

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics
        self.origins: dict[Sym, Origin] = {}
        self.spans: dict[Expr, Interval] = {}
        self.unequal: set[Expr] = set()
        self.memo: dict[object, object] = {}

    def new(self, words: str, *, low: int | None = None, high: int | None = None, kind: Any = "int") -> Sym:
        """A symbol; `words` say what it is, `low` and `high` what its value is for certain."""
        number = len(self.origins)
        values: list[Any] = []
        for turn in range(5):
            prime = _prime(5 * number + turn)
            values.append(_STEP * prime if kind == "int" else prime * 1.3819660112501051)
        sym = self.dynamics.table.observed(f"u{number}", values, words, low=low, high=high, kind=kind)
        self.origins[sym] = Origin(words)
        return sym

    def found_in(self, node: fx.Node, sizes: list[object]) -> None:
        """The tensor of `node` has these sizes."""
        for dim, size in enumerate(sizes):
            origin = self.origins.get(size) if isinstance(size, Sym) else None
            if origin is not None and origin.node is None:
                origin.node, origin.dim = node, dim
                node.meta["unbacked"] = (*node.meta.get("unbacked", ()), size)

    # ---------------------------------------------------------------- questions

    def among(self, *values: Any) -> list[Sym]:
        """The unbacked symbols that expressions or conditions depend on."""
        table = self.dynamics.table
        symbols: dict[Sym, None] = {}
        for value in values:
            for side in (value.left, value.right) if isinstance(value, Relation) else (value,):
                symbols.update((sym, None) for sym in table.inputs(side) if sym in self.origins)
        return sorted(symbols, key=lambda sym: sym.name)

    def decide(self, op: str, left: Any, right: Any) -> object:
        """Whether `left op right`, where facts prove it either way; else a SymbolicBool, which no branch can take."""
        relation = Relation(op, left, right)
        if self.proven(relation):
            return True
        if self.proven(relation.negated()) and not self.dynamics.bounds.has_float(relation):
            return False
        return SymbolicBool(self.dynamics, relation)

    def proven(self, relation: Relation) -> bool:
        """Whether the condition (of integers) holds for certain."""
        bounds = self.dynamics.bounds
        if bounds.has_float(relation):
            return False
        if bounds.implied(relation):
            return True
        if relation.op == "ne" and not self.unequal.isdisjoint((relation.gap, -relation.gap)):
            return True
        gap, offset = split_constant(relation.gap)
        return proves(plus(self._span(gap), (offset, offset)), relation.op)

    def _span(self, gap: Expr) -> Interval:
        return intersection(self.dynamics.bounds.interval(gap), self.spans.get(gap, UNBOUNDED))

    def learn(self, relation: Relation) -> None:
        """From here on the condition holds: the program raises otherwise."""
        if self.dynamics.bounds.has_float(relation):
            return
        gap, offset = split_constant(relation.gap)
        if relation.op == "ne":
            self.unequal.add(relation.gap)
            low = self._span(gap)[0]
            if low is not None and low + offset == 0:
                self._narrow(gap, (low + 1, None))
            return
        low = -offset + _LEAST.get(relation.op, 0) if relation.op in ("ge", "gt", "eq") else None
        high = -offset + _MOST.get(relation.op, 0) if relation.op in ("le", "lt", "eq") else None
        self._narrow(gap, (low, high))
        self.dynamics.bounds.add(relation)

    def _narrow(self, gap: Expr, span: Interval) -> None:
        for sign in (1, -1):
            known = self.spans.get(gap * sign, UNBOUNDED)
            self.spans[gap * sign] = intersection(times(span, (sign, sign)), known)

    def possible(self, assignment: Mapping[Sym, Number], symbols: list[Sym]) -> bool:
        """Whether an assignment meets what is known; not too much is asked: stand-ins are larger than most bounds."""
        for sym in symbols:
            low = self.dynamics.bounds.of(sym)[0]
            if low is not None and assignment[sym] < low:
                return False
        evaluate = self.dynamics.table.evaluate
        try:
            for gap, (low, high) in self.spans.items():
                if low is not None and low == high and evaluate(gap, assignment) != low:
                    return False
            return all(evaluate(expr, assignment) != 0 for expr in self.unequal)
        except (KeyError, ArithmeticError, ValueError):
            return True

    # ---------------------------------------------------------------- breaks

    def undecided(self, relation: Relation) -> errors.GraphBreak:
        """The break for a condition that nothing is known of."""
        text = self.dynamics.text(relation)
        return errors.graph_break(
            kind="data-dependent branch",
            context=text,
            explanation=f"Whether {text} decides how the program goes on, but {self._words(relation)} is known only "
            "when the program runs",
            hints=(
                f"If it always holds (or never), say so before this line, as in torch._check({text}).",
                "Compute both sides and choose with torch.where(condition, a, b), or use torch.cond.",
            ),
        )

    def needed(self, value: object) -> errors.GraphBreak:
        """The break for a use of the number itself."""
        return errors.graph_break(
            kind="data-dependent value",
            context=self.dynamics.text(value),
            explanation=f"Python needs the number {self.dynamics.text(value)} here (as an index, a count of rounds, a "
            f"text, a key, ...), but {self._words(value)} is known only when the program runs",
        )

    def unfitted(self, what: str, *values: object) -> errors.GraphBreak:
        """The break for an operation of which nobody knows what it does for all values."""
        return errors.graph_break(
            kind="data-dependent size",
            context=what,
            explanation=f"What {what} gives depends on {self._words(*values)}, which is known only when the "
            "program runs",
        )

    def _words(self, *values: object) -> str:
        symbols = self.among(*values) or list(self.origins)[:1]
        return " and ".join(f"{sym.name} ({self.origins[sym].words})" for sym in symbols)


def _prime(index: int) -> int:
    """The prime number at `index`, counted from 11."""
    number = _FIRST - 2
    while index >= 0:
        number += 2
        if all(number % d for d in range(3, int(number**0.5) + 1, 2)):
            index -= 1
    return number
