"""Gradients of one compiled backward that leave it one after the other.

DistributedDataParallel begins to reduce a bucket of gradients when all of them are there. A compiled graph is one node
on autograd's tape, which gives its gradients when all are computed. Here it is followed by a chain of nodes, one for
each bucket: a node resumes the compiled backward, which stops where the bucket's gradients are there, and while the
next one runs, they are on their way. What links two nodes is an empty tensor, whose gradient carries the backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from typing import Any

import torch

from argand._core.calls import uncaptured
from argand.graph import compat

Steps = Generator[tuple[list[torch.Tensor], tuple[Any, ...]], None, Sequence[Any]]
"""A run of a compiled backward: at each stop gradients, and inputs that it will still read; at its end the others."""


class Arrivals:
    """The gradients of one run of a backward.

    Arguments:
        groups: positions of the inputs whose gradients leave together, in their order; of the others, at the end.

    Fields:
        gradients: by position; None for those that are not there yet, or were taken.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self.gradients: list[Any] = []
        self._groups = groups
        self._next = 0
        self._steps: Steps | None = None
        self._others: list[tuple[int, int]] = []
        self._read: tuple[Any, ...] = ()
        self._written = 0

    def begin(self, gradients: list[Any], steps: Steps, others: list[tuple[int, int]]) -> None:
        """The backward was called.

        Arguments:
            others: (position, number of the result) of the gradients that come at its end.
        """
        self.gradients, self._steps, self._others = gradients, steps, others

    def first(self, gradients: Sequence[Any], positions: Sequence[int]) -> tuple[Any, ...]:
        """Of what the graph's own node gives: what the later nodes need, and the gradients at these positions."""
        self.gradients = list(gradients)
        return (linked(self), *uncaptured(self.take, 0, positions))

    def finish(self) -> None:
        """Run the backward to its end."""
        while self._steps is not None:
            self._advance(self._steps)

    def take(self, number: int, positions: Sequence[int]) -> list[Any]:
        """The gradients of the inputs at these positions, which are those of a group; nobody else has them then."""
        while self._steps is not None and self._next <= number:
            self._advance(self._steps)
        taken = [self.gradients[position] for position in positions]
        for position in positions:
            self.gradients[position] = None  # autograd makes a gradient that nobody else has `.grad`, and copies others
        return taken

    def _advance(self, steps: Steps) -> None:
        if _writes(self._read) != self._written:  # by a hook, say: eager refuses to read what was written to
            raise RuntimeError(_WRITTEN)
        guard = compat.disabled_autocast() if compat.autocast_active() else None
        try:
            batch, self._read = next(steps)
            self._written = _writes(self._read)
        except StopIteration as end:
            for position, result in self._others:
                self.gradients[position] = end.value[result]
            self._steps = None
        else:
            for position, gradient in zip(self._groups[self._next], batch):
                self.gradients[position] = gradient
            batch.clear()
            self._next += 1
        finally:
            del guard


class CompiledFunction(torch.autograd.Function):
    """The node of one group, in profiles called as the graph's own, which gives the gradients of the first."""

    @staticmethod
    def forward(ctx: Any, number: int, positions: Sequence[int], *held: Any) -> torch.Tensor:
        ctx.number, ctx.positions = number, positions
        ctx.last = len(held) == len(positions)
        ctx.set_materialize_grads(False)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, link: Any) -> Any:
        arrivals: Arrivals | None = getattr(link, "arrivals", None)
        if arrivals is None:
            return (None, None, *[None] * (len(ctx.positions) + (not ctx.last)))
        taken = uncaptured(arrivals.take, ctx.number, ctx.positions)
        return (None, None, *taken) if ctx.last else (None, None, *taken, linked(arrivals))


def linked(arrivals: Arrivals) -> torch.Tensor:
    """The gradient that hands a backward on to the node of the next group."""
    link = torch.empty(0, device="cpu")
    link.arrivals = arrivals
    return link


Groups = Sequence[tuple[int, Sequence[int]]]
"""What nodes give, from the graph's own on: numbers of the stop that each waits for, and positions of inputs."""


def chain(inputs: Sequence[Any], groups: Groups) -> Any:
    """Nodes for groups of inputs but the first, from the last on: what leads to them; it says what the first one is."""
    link: Any = None
    apply: Any = super(torch.autograd.Function, CompiledFunction).apply  # without the search for a transform
    for number, positions in groups[:0:-1]:
        held = [inputs[position] for position in positions]
        link = apply(number, positions, *held, *([] if link is None else [link]))
    if link is not None:
        link.first = groups[0][1]
    return link


class Order:
    """The nodes of a call of a compiled graph.

    DistributedDataParallel makes its buckets anew when it has seen in which order gradients arrive. Those of one node
    arrive in an order of the engine's queue: in the first call that a DDP listens to, each has a node of its own, and
    they arrive as eager's do, so that buckets end where the backward stops.

    Arguments:
        groups: what leaves together, as `Arrivals` has it, and last what leaves at the end.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = list(enumerate(groups))
        self._singly = [(number, (one,)) for number, group in self._groups for one in reversed(group)]
        self._listened: weakref.WeakSet[Any] = weakref.WeakSet()
        self._alone = len(self._singly) < 2
        self._together = len(groups) < 2
        self._ddp = torch.nn.parallel.DistributedDataParallel

    def matters(self) -> bool:
        """Whether the call at hand may have several nodes."""
        return not (self._alone or (self._together and self._ddp._active_ddp_module is None))

    def now(self) -> Groups:
        """Those of the call at hand."""
        ddp: Any = self._ddp._get_active_ddp_module()
        if not getattr(ddp, "require_backward_grad_sync", False) or ddp in self._listened:
            return self._groups
        self._listened.add(ddp)
        return self._singly


def _writes(read: Sequence[torch.Tensor]) -> int:
    """How often these tensors were written to."""
    return sum([0 if one.is_inference() else one._version for one in read])


_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor that a "
    "compiled graph saved, by a hook that was called before the graph's backward had ended"
)
