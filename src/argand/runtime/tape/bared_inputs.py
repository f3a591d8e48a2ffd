"""Inputs of a compiled graph that are subclasses: it gets plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from argand import errors
from argand.graph.dtensors import Edge, arrived, is_recorded, local_of, locals_of
from argand.graph.version_counters import counted_as
from argand.graph.wrappers import PartEdge
from argand.runtime.recipes import with_recipe

Places = Sequence["tuple[int, Edge | PartEdge | None]"]
"""Which inputs are subclasses; with what a DTensor, or a part of another wrapper, shares with the graph."""


def _arrived(tensor: Any) -> torch.Tensor:
    part = arrived(tensor)
    return counted_as(tensor, part.view_as(part)) if torch.is_grad_enabled() or tensor.requires_grad else part


class _Arrived(torch.autograd.Function):
    """What a functional collective gave -> what has arrived."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return _arrived(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


def bare(tensor: torch.Tensor, edge: Edge | PartEdge | None, taken: dict[int, Sequence[torch.Tensor]]) -> torch.Tensor:
    """The same memory as a plain tensor; what is to come from other processes is there then. Of a DTensor its part, of
    another wrapper one of its parts, which are all `taken` at once."""
    if isinstance(edge, PartEdge):
        parts = taken.get(id(edge.entry))
        if parts is None:
            parts = taken[id(edge.entry)] = edge.entry.taken(tensor)
        return parts[edge.number]
    if edge is not None:
        return local_of(tensor, edge)
    wait = getattr(type(tensor), "trigger_wait", None)
    if wait is not None:
        if not tensor.requires_grad:
            return _arrived(tensor)
        if torch.is_grad_enabled():
            return cast(torch.Tensor, _Arrived.apply(tensor))
        return _arrived(tensor).detach().requires_grad_()
    return torch.Tensor.as_subclass(tensor, torch.Tensor)


def bare_at(at: Places, inputs: Sequence[object]) -> list[Any]:
    """Inputs with plain tensors at the places `at`."""
    given: list[Any] = list(inputs)
    taken: dict[int, Sequence[torch.Tensor]] = {}
    recorded = {place: edge for place, edge in at if isinstance(edge, Edge) and is_recorded(given[place], edge)}
    for place, edge in at:
        if place not in recorded:
            given[place] = bare(given[place], edge, taken)
    if recorded:
        parts = locals_of([given[place] for place in recorded], [*recorded.values()])
        for place, part in zip(recorded, parts):
            given[place] = part
    return given


def examples_at(at: Places, inputs: Sequence[object]) -> list[Any]:
    """The same for a backend that is to compile a graph, or a break where something does not come."""
    try:
        return bare_at(at, inputs)
    except RuntimeError as error:
        reason = f"What comes from other processes did not arrive: {error}"
        kind = "torch call raises an exception"
        raise errors.graph_break(kind=kind, context="wait_tensor", explanation=reason) from None


def bared(run: Callable[..., Any], at: Places) -> Callable[..., Any]:
    """A compiled graph whose inputs at the places `at` are subclasses."""

    def call(*args: Any) -> Any:
        return run(*bare_at(at, args))

    return with_recipe(call, "bared", lambda: (run, tuple(at)))
