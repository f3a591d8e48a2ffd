"""The part of autograd's tape that a backward would run, as a key, and the tensors that it would read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from argand._core.node_layout import NodeLayout
from argand.engine.node_state import NotRecorded, reading_of, tensor_fact


@dataclass(slots=True)
class Structure:
    """What a backward would run.

    Arguments:
        key: equal where a recording of one backward computes the other.
        nodes: of the tape, each before those that it leads to alone.
        saved: per node, which of the tensors are its own.
        tensors: that nodes saved.
        leaves: per node that accumulates a gradient, its leaf.
        hooked: those of these nodes whose leaf has hooks that see the gradient before it is accumulated.
        ordered: some leaf has hooks, so that the order of leaves matters.
    """

    key: tuple[Any, ...]
    nodes: list[Any]
    saved: list[range]
    tensors: list[torch.Tensor]
    leaves: dict[int, torch.Tensor]
    hooked: set[int] = field(default_factory=set)
    ordered: bool = False

    def form(self) -> tuple[Any, ...]:
        """Names of nodes and how they are joined: what does not change with sizes."""
        place = {id(node): at for at, node in enumerate(self.nodes)}
        return tuple(
            [
                (node.name(), tuple([None if to is None else (place[id(to)], nr) for to, nr in node.next_functions]))
                for node in self.nodes
            ]
        )


def structure_of(roots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], hooks: NodeLayout) -> Structure:
    """Read the tape behind `roots`.

    Arguments:
        grads: that the backward begins with.
        hooks: tells whether there are hooks on a node.

    Raises:
        NotRecorded: the engine has to run this.
        RuntimeError: it would raise one.
    """
    found = Structure((), [], [], [], {})
    place: dict[int, int] = {}
    facts: list[Any] = []

    def placed(node: Any) -> int:
        at = place.get(id(node))
        if at is None:
            at = place[id(node)] = len(place)
            found.nodes.append(node)
        return at

    for root, grad in zip(roots, grads):
        if type(root) is not torch.Tensor or root.grad_fn is None or grad is None:
            raise NotRecorded("what is differentiated is a leaf, or no plain tensor")
        facts.append((placed(root.grad_fn), root.output_nr, tensor_fact(grad)))
    for node in found.nodes:  # grows
        if not hooks.unhooked(node):
            raise NotRecorded(f"there is a hook on {node.name()} or on a tensor that it made")
        first = len(found.tensors)
        edges = node.next_functions
        leaf = getattr(node, "variable", None) if not edges else None
        if leaf is not None:
            facts.append(_leaf_facts(found, place[id(node)], leaf))
        else:
            facts.append(type(node))
            facts.append(reading_of(node)(node, found.tensors))
            facts.append(tuple([None if to is None else (placed(to), nr) for to, nr in edges]))
            _check_edges(node, edges)
        facts.append(_received(node))
        found.saved.append(range(first, len(found.tensors)))
    found.key = tuple(facts)
    return found


def _leaf_facts(found: Structure, at: int, leaf: torch.Tensor) -> Any:
    """What is known of a leaf beyond its gradient, which the engine itself accumulates."""
    if not leaf.is_leaf or type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout is not torch.strided:
        raise NotRecorded("a leaf is of a subclass, sparse, or no leaf any more")
    found.leaves[at] = leaf
    if leaf._backward_hooks:
        found.hooked.add(at)
        found.ordered = True
    if leaf._post_accumulate_grad_hooks:
        found.ordered = True
    return ("leaf", at in found.hooked)


def _check_edges(node: Any, edges: Sequence[tuple[Any, int]]) -> None:
    """The sizes of what was joined are told by the gradient's and by those of the gradients that come of it."""
    if node.name() == "CatBackward0" and sum(to is None for to, _ in edges) > 1:
        raise NotRecorded("CatBackward0 does not tell the sizes of tensors without gradients")


def _received(node: Any) -> tuple[Any, ...]:
    """The gradients that a node expects: sizes, dtypes, devices."""
    facts = []
    for one in node._input_metadata:
        if one.is_nested_tensor or one.device.type != "cpu":
            raise NotRecorded(f"a gradient is nested, or on {one.device.type}")
        facts.append((tuple(one.shape), one.dtype))
    return tuple(facts)
