"""What a capture knows of stand-ins of tensors, and of the graphs that they are recorded in."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

import torch
from torch import fx

from argand.capture.facts.handlers import Function
from argand.capture.facts.sources import Source
from argand.graph.sizes.relations import Relation
from argand.quick_dataclasses import dataclass


class Dynamic:
    """What is known of the sizes of a stand-in that vary.

    Arguments:
        siblings: the tensor at the probes.
        sizes: an expression or int per dim; None where nothing fits.
        strides: the same of strides; None until somebody asks.
        unmerged: conditions under which none of its dims that are two could be one; not guarded until somebody asks.
    """

    __slots__ = ("siblings", "sizes", "strides", "unmerged")

    def __init__(self, siblings: tuple[Any, ...], sizes: list[Any], strides: list[object] | None = None) -> None:
        self.siblings = siblings
        self.sizes = sizes
        self.strides = strides
        self.unmerged: list[Relation] = []


class Cost(enum.IntEnum):
    """Of knowing the value of a tensor; also the most that somebody pays for it."""

    NOTHING = 0
    KEPT = 1
    ARGUMENT = 2
    CONDITION = 3


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor that came in: where it was found, and the one of the call at hand."""

    source: Source
    real: torch.Tensor


class Call(Protocol):
    """A call whose result is known, with what it waits for in the places of stand-ins."""

    func: Function
    args: list[object]
    kwargs: dict[str, object]


@dataclass(slots=True, eq=False)
class Deferred:
    """The value of a stand-in that is known, and not computed yet.

    Arguments:
        call: computes a result, once; None where it fails.
        path: the place of the value in that result.
        depth: of the calls that it waits for.
        like: the stand-in.
        cost: what telling it costs: nothing, a guard on what a tensor that the program keeps holds, or on what an
            argument does (`record.held_values`), or on the answer to a question alone (`record.conditions`).
        origin: the call, or the tensor that came in.
    """

    call: Callable[[], object]
    path: tuple[int, ...]
    depth: int
    like: torch.Tensor
    cost: Cost = Cost.NOTHING
    origin: Leaf | Call | None = None

    def get(self) -> torch.Tensor | None:
        """The value; None where it is not what the stand-in says."""
        value = self.call()
        for number in self.path:
            value = value[number] if isinstance(value, tuple | list) else None
        fits = isinstance(value, torch.Tensor) and value.shape == self.like.shape and value.dtype is self.like.dtype
        return value if fits else None


@dataclass(slots=True, eq=False)
class TensorInfo:
    """What is known of a stand-in.

    Arguments:
        tensor: the stand-in (kept alive: the table is keyed by its id).
        node: the fx node that computes it.
        device: the logical device.
        source: where it comes from, for a graph input; None for a result.
        real: the real tensor, for a graph input.
        constant: the value, where it is known while capturing (tensors made from numbers; ask `record.constants`).
        dynamic: sizes that vary from call to call; None where none do.
        laid_out: its placements are what the stand-in says. Those of a gradient are known when a backward runs.
    """

    tensor: torch.Tensor
    node: fx.Node
    device: torch.device
    source: Source | None = None
    real: torch.Tensor | None = None
    constant: torch.Tensor | Deferred | None = None
    dynamic: Dynamic | None = None
    laid_out: bool = True


@dataclass(slots=True, eq=False)
class Dressed:
    """A stand-in of a subclass.

    Arguments:
        tensor: what the program sees, an instance of its class.
        plain: the stand-in that the graph knows; no other dressed one is over it.
    """

    tensor: torch.Tensor
    plain: torch.Tensor


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor whose data was set.

    Arguments:
        info, before: as it is since, and as it was.
        memory: its new memory.
        sequence: number of the root instruction.
    """

    info: TensorInfo
    before: TensorInfo
    memory: int
    sequence: int


@dataclass(slots=True, eq=False)
class Scope:
    """A graph being recorded inside another one.

    Arguments:
        what: how messages call the function that has it as its body.
        graph: where operations go.
        lifted: id of a TensorInfo from outside -> its placeholder here; `order` has the infos in the same order.
        attributes: what the graph's `get_attr` nodes stand for.
        feeds: a graph that is finished and may still get more outputs for this one (a forward for its backward).
        sequence: number of the root instruction that opened it.
        results: of the body of an `autograd.Function`, which autograd runs as it is: what its forward has returned.
        entry: of a backward, the node that tells the grad mode in which it is run; None until that is changed.
        managers: id of what changed the grad mode -> whether the mode before was that one; None for the latest change.
    """

    what: str
    graph: fx.Graph
    lifted: dict[int, fx.Node] = field(default_factory=dict)
    order: list[TensorInfo] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    feeds: Scope | None = None
    sequence: int = -1
    results: Sequence[torch.Tensor] | None = None
    entry: fx.Node | None = None
    managers: dict[int | None, bool] = field(default_factory=dict)
