"""Backwards of graphs in which results are computed from other results, cut at these.

In eager such a result has a node of its own on the tape, at which gradients meet: what comes from outside, and what the
results contribute that are computed from it. Hooks see their sum there, and may put another in its place. A compiled
backward computes that sum too, at a node of its graph. So there are two more backwards, made where somebody looks: what
results contribute to the gradients of others ("passed"), and the inputs' gradients from the results' own ("apart").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from argand.autograd.tracing.tape import Tape
from argand.graph import compat
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, copied
from argand.graph.origin import NodeOrigin
from argand.graph.sizes.symbolic import MetaTensor, contiguous_meta, strided_meta
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.plan import Kind, Slot

aten = torch.ops.aten


class Backward(Protocol):
    """The backward's half of a `partition.Partition`."""

    @property
    def backward(self) -> AtenProgram: ...
    @property
    def arguments(self) -> list[Slot]: ...
    @property
    def gradients(self) -> dict[int, Slot]: ...
    @property
    def passed(self) -> dict[int, Slot]: ...


@dataclass(slots=True)
class Half:
    """The backward's half of a partition."""

    backward: AtenProgram
    arguments: list[Slot]
    gradients: dict[int, Slot]
    passed: dict[int, Slot]


def gradients_apart(
    wanted: Mapping[int, fx.Node], tangents: Sequence[fx.Node], others: Iterable[fx.Node]
) -> dict[int, fx.Node]:
    """Those of the results' gradients behind which nothing reads what they are the sum of.

    Arguments:
        wanted: number of a result -> its gradient.
        tangents: per result, its gradient from outside of the graph.
        others: what the graph returns else.
    """
    returned = set(others)
    given = {number: node for number, node in wanted.items() if node is not tangents[number]}
    return {number: node for number, node in given.items() if _is_apart(node, tangents[number], returned)}


def _is_apart(gradient: fx.Node, tangent: fx.Node, returned: set[fx.Node]) -> bool:
    if _permuted(gradient.meta["val"], tangent.meta["val"]) is None:
        return False
    terms, pending = {tangent}, [tangent]
    while pending:
        node = pending.pop()
        if node in returned:
            return False
        for user in node.users:
            if user.op != "output" and user is not gradient and user not in terms:
                terms.add(user)
                pending.append(user)
    return True


def cut_at_results(cut: Backward, kind: Kind) -> Half:
    """The backward of a kind; "passed" gives the gradients of `cut.passed`, in that order, in place of the inputs'."""
    if kind == "whole":
        return Half(cut.backward, cut.arguments, cut.gradients, cut.passed)
    program = copied(cut.backward)
    program.rewritten, program.layers = False, None
    placeholders = dict(zip(cut.arguments, program.placeholders))
    output = program.output_node
    values: tuple[fx.Node, ...] = output.args[0]
    output.args = ((),)
    instead: dict[fx.Node, fx.Node] = {}
    for number, slot in cut.passed.items():
        tangent, gradient = placeholders[Slot("tangent", number)], values[slot.index]
        instead[gradient] = own = _as_laid_out(program.graph, tangent, gradient)
        gradient.replace_all_uses_with(own, delete_user_cb=lambda user: user.op != "output")
    if kind == "passed":
        given = {place: values[slot.index] for place, slot in enumerate(cut.passed.values())}
    else:
        given = {p: values[slot.index] for p, slot in cut.gradients.items() if slot.kind == "value"}
        given = {position: instead.get(value, value) for position, value in given.items()}
    slots = {node: slot for slot, node in placeholders.items()}
    returned: dict[fx.Node, int] = {}
    gradients = dict(cut.gradients) if kind == "apart" else {}
    for position, value in given.items():
        gradients[position] = slots.get(value) or Slot("value", returned.setdefault(value, len(returned)))
    output.args = (tuple(returned),)
    output.meta["val"] = tuple([node.meta["val"] for node in returned])
    eliminate_dead(program.graph)
    return Half(program, cut.arguments, gradients, {})


def tape_of(tape: Tape, kind: Kind, passed: Iterable[int]) -> Tape:
    """What a result leads to in the backward of a kind."""
    if kind == "whole":
        return tape
    if kind == "apart":
        return replace(tape, reached=tape.alone)
    order = list(passed)
    reached = [frozenset(place for place, number in enumerate(order) if number in near) for near in tape.passed]
    return replace(tape, reached=tuple(reached))


def _permuted(wanted: Any, given: Any) -> list[int] | None:
    """In which order of its dimensions a tensor is laid out; empty for that of `given`, None where it has none."""
    if tuple(wanted.stride()) == tuple(given.stride()):
        return []
    if not isinstance(wanted, torch.Tensor):
        return None
    order = sorted(range(wanted.dim()), key=lambda dim: (-wanted.stride(dim), -wanted.shape[dim], dim))
    dense = torch.empty([wanted.shape[dim] for dim in order], device="meta")
    back = [order.index(dim) for dim in range(wanted.dim())]
    return order if dense.permute(back).stride() == wanted.stride() else None


def _as_laid_out(graph: fx.Graph, tangent: fx.Node, gradient: fx.Node) -> fx.Node:
    """A result's own gradient, laid out as the sum in whose place it is read."""
    wanted = gradient.meta["val"]
    order = _permuted(wanted, tangent.meta["val"])
    if not order:
        return tangent
    back = [order.index(dim) for dim in range(len(order))]
    laid_out, val = tangent, tangent.meta["val"]
    size, stride = ([dims[dim] for dim in order] for dims in (val.shape, val.stride()))
    steps: tuple[tuple[Any, tuple[Any, ...], dict[str, Any], MetaTensor], ...] = (
        (aten.permute.default, (order,), {}, strided_meta(size, stride, val.dtype)),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}, contiguous_meta(size, val.dtype)),
        (aten.permute.default, (back,), {}, wanted),
    )
    with graph.inserting_before(gradient):
        for func, args, kwargs, result in steps:
            laid_out = _node(graph, laid_out, func, args, kwargs, result)
    return laid_out


def _node(graph: fx.Graph, of: fx.Node, func: Any, args: Any, kwargs: dict[str, Any], val: MetaTensor) -> fx.Node:
    new = compat.new_node(graph, func, (of, *args), kwargs)
    new.meta.update(of.meta)
    new.meta.update(val=val, backward=True, origin=NodeOrigin(of.name, made_by="partition"))
    return new
