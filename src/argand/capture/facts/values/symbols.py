"""Where the values of symbols are found at run time, and what attempts at a frame have learned of them."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Protocol

from torch import fx

from argand.capture.facts.sources import Source
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbols import Computed
from argand.quick_dataclasses import dataclass

MAX_LEARNED = 24  # restarts after which a frame's sizes are all constants


@dataclass(frozen=True, slots=True)
class Place:
    """Where a symbol's value is found at run time.

    Arguments:
        source: of the tensor or number.
        what: "size", "stride", "int" or "float".
        dim: of a size or stride.
    """

    source: Source
    what: str
    dim: int = -1

    def __str__(self) -> str:
        name = self.source.name()
        return f"{name}.{self.what}()[{self.dim}]" if self.dim >= 0 else name


@dataclass(slots=True, eq=False)
class Origin:
    """Where the value of an unbacked symbol comes from at run time.

    Arguments:
        words: for messages.
        node: the operation that makes the number, or the tensor that has the size; None until it is recorded.
        dim: of the size; -1 for a number.
    """

    words: str
    node: fx.Node | None = None
    dim: int = -1


@dataclass(slots=True)
class Memory:
    """What attempts at one frame have learned; symbols keep their names from attempt to attempt.

    Fields:
        names: the name of the symbol of a place.
        static: places that are constants after all.
        constants: the values of those, by name.
        narrow: places that could be no more than two numbers, as far as is known, or equal something: others may vary.
        marked: places that the user wants symbolic (`mark_dynamic`), with their range.
        solved: symbols that equal an expression of earlier ones.
        modulus: by symbol: probes keep their residue modulo this.
        facts: conditions that probes must meet; room: further ones, such that others can be met.
        bends: by text of a `min` or `max`: on which side of it the call is, and some probe is not to be.
        extrema: those that are numbers of their own, and the places of what they are of; decided: others, which are
            guarded to be one of the two.
        asserted: conditions that operations of the program need, to be guarded.
        one_sign: numbers of both signs are of the call's, as the program turned out to need.
        nearness: how often probes nearer to the call's own sizes were needed.
        shapes: of the inputs, by source.
        copied: by name of an autograd.Function: the arguments that its forward writes to, and is given copies of.
        untold: the program raised as it was told that it is compiled, and is not told so again.
    """

    names: dict[Place, str] = field(default_factory=dict)
    static: set[Place] = field(default_factory=set)
    constants: dict[str, int] = field(default_factory=dict)
    narrow: set[Place] = field(default_factory=set)
    marked: dict[Place, tuple[int | None, int | None]] = field(default_factory=dict)
    solved: dict[str, Expr] = field(default_factory=dict)
    modulus: dict[str, int] = field(default_factory=dict)
    facts: list[Relation | Computed] = field(default_factory=list)
    room: list[Relation] = field(default_factory=list)
    bends: dict[str, Relation] = field(default_factory=dict)
    extrema: dict[str, frozenset[Place]] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)
    asserted: list[Relation] = field(default_factory=list)
    learned: int = 0
    one_sign: bool = False
    nearness: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    copied: dict[str, frozenset[int]] = field(default_factory=dict)
    untold: bool = False

    def name(self, place: Place) -> str:
        """s0, s1, ... in the order of first use."""
        return self.names.setdefault(place, f"s{len(self.names)}")

    @property
    def exhausted(self) -> bool:
        """Too much was learned: everything is a constant."""
        return self.learned > MAX_LEARNED


class Nodes(Protocol):
    """The scalar nodes of a graph."""

    def of(self, value: Any) -> Any:
        """The node of an expression, or the number."""

    def outside(self, value: Expr) -> TensorInfo:
        """An expression as what a subgraph takes from outside."""

    def condition(self, relation: Relation) -> fx.Node:
        """The node of a condition."""
