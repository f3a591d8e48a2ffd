"""What a graph holds that values can make raise when it runs."""

from __future__ import annotations

from dataclasses import field
from types import CodeType
from typing import Protocol

from torch import fx

from argand.capture.facts.values.tensor_info import TensorInfo
from argand.quick_dataclasses import dataclass

RERUNS = 3
"""So many times the frame's own code runs because of an error that the program handles; then the graph is split."""


class Known(Protocol):
    """What is remembered of a frame's code (`driver.failures`)."""

    reruns: int
    warned: set[str]


class Points(Protocol):
    """The operations that may raise, and what the program did before each (`output.before_error`)."""

    lost: bool
    """There is an operation before which there are effects that could not be written down."""
    by_name: dict[str, tuple[str, CodeType | None]]
    """The operation's node -> (where it stands in the program, the effects)."""

    @property
    def any(self) -> bool:
        """Whether there is anything to do when the graph raises."""

    def add(self, marker: fx.Node) -> bool:
        """Note an operation that is about to be recorded behind a node. False: its effects cannot be written down."""

    def settle(self) -> None:
        """The graph's nodes get no other names any more."""


@dataclass(slots=True)
class OnData:
    """What a graph holds that values can make raise.

    Fields:
        known: what is remembered of the frame's code; None outside of captures.
        may_split: the graph may be broken at such an operation.
        possible: there is one.
        foreign: there is one that is not torch's and may raise anything.
        noticed: there is one inside a `try` or `with` that would be told.
        outside: the graph does what running the frame again would do twice.
        effects: something other than a write to an input is among that.
        late: there is one behind a write to an input.
        behind: (the node after which such an operation was recorded, whether it is a noticed one).
        opaque: there is a function of the program's, marked to be one node: what else it does is not known.
        saved: small inputs to which the graph writes: they are copied before it runs.
        undone: other inputs to which it writes after reading them.
        told: the backend says of an error that it left what is written to as it was.
        overwriting, overwrites: what the write at hand, and those so far, fill before anything has read it.
        points: such operations, and what the program did before each; None outside of captures.
        gained: autograd records a write to what exists outside, which may come to require gradients by it.
    """

    known: Known | None = None
    may_split: bool = True
    possible: bool = False
    foreign: bool = False
    noticed: bool = False
    outside: bool = False
    effects: bool = False
    late: bool = False
    opaque: bool = False
    behind: list[tuple[fx.Node, bool]] = field(default_factory=list)
    saved: dict[TensorInfo, None] = field(default_factory=dict)
    undone: dict[TensorInfo, None] = field(default_factory=dict)
    told: bool = False
    overwriting: fx.Node | None = None
    overwrites: set[fx.Node] = field(default_factory=set)
    points: Points | None = None
    gained: bool = False

    @property
    def split(self) -> bool:
        """Whether errors that the program handles have been so frequent that the graph ends before them."""
        return self.known is not None and self.may_split and self.known.reruns >= RERUNS
