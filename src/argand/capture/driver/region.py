"""The settings under which frames are captured: the frame hook's key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from types import CodeType

import torch

from argand._core import _C
from argand.outcomes import store
from argand.quick_dataclasses import dataclass

CompilerFn = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., object]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Region:
    """What one `argand.compile(...)` asked for. Entries of the code cache belong to a region, by identity.

    Arguments:
        backend: compiles a captured graph; raises BackendCompilerFailed when the backend fails.
        backend_name: for messages.
        fullgraph: a graph break is an error.
        dynamic: None lets sizes become symbolic after they changed, True from the start, False never.
        observe: one version of each code object is compiled; each further miss is reported and runs eagerly.
        request: backend, fullgraph, dynamic, mode and options as they were given.
        stored_as: what tells outcomes of this region from those of others, as text; "" where none are stored now.
        data_sizes: the backend takes graphs whose sizes depend on data, so that these need not break.
        told: an error of a graph says whether what the graph writes to is as it was (`errors.UNWRITTEN`).
        cuts: makes the frame hook's callback for a region in which parts of such graphs are captured, which get the
            sizes with their arguments; None: the backend gets the graphs.
        asked: code that was to be compiled itself, not only what calls it.
    """

    backend: CompilerFn
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    observe: bool = False
    request: tuple[object, ...] = ()
    stored_as: Callable[[], str] = str
    data_sizes: bool = False
    told: bool = False
    cuts: Callable[[Region], Callable[[_C.FrameInfo], _C.Answer]] | None = None
    asked: set[CodeType | None] = field(default_factory=set)

    def of_parts(self) -> tuple[Callable[[_C.FrameInfo], _C.Answer], Region]:
        """The frame hook's callback and the region that parts of a graph are captured in: `cuts` is not None."""
        assert self.cuts is not None
        kept = self.stored_as if store.STORE.collected is None else str  # what is saved is whole
        region = dataclasses.replace(self, cuts=None, stored_as=kept)
        return self.cuts(region), region
