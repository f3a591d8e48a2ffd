"""What a joint graph's backward reads, as eager's tape holds it: an input, its data, a copy, or a view of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from argand.autograd.recording.recorder import Recorder
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.graph import compat
from argand.graph.nodes.meta import is_view, viewed
from argand.graph.origin import NodeOrigin

aten = torch.ops.aten


def is_saved(node: fx.Node) -> bool:
    """Whether a formula of the backward reads a value, through views or not: eager has saved it."""
    return any("backward" in user.meta or (is_view(user) and is_saved(user)) for user in node.users)


def uses(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """What reads a value, but for checkpoints: (the value or a view that the forward makes of it, which operation reads
    that, whether it is one of the forward)."""
    for user in node.users:
        forward = "backward" not in user.meta
        if user.op != "call_function" or "recompute" in user.meta:
            continue
        if forward and is_view(user):
            yield from uses(user)
        else:
            yield node, user, forward


def read_copy(node: fx.Node, kind: Any, readers: Iterable[tuple[fx.Node, fx.Node, bool]], before: fx.Node) -> fx.Node:
    """Have operations read a copy of a value, or views of it; gives the copy.

    Arguments:
        readers: some of `uses(node)`.
        before: the copy stands before it.
    """
    with node.graph.inserting_before(before):
        copied = duplicate(node.graph, node, kind)
    twins = {node: copied}

    def twin(view: fx.Node) -> fx.Node:
        if view not in twins:
            with view.graph.inserting_after(view):
                twins[view] = compat.copy_node(view.graph, view, twin)
        return twins[view]

    for source, user, _ in readers:
        user.replace_input_with(source, twin(source))
    return copied


def duplicate(graph: fx.Graph, node: fx.Node, operation: Any = aten.clone.default) -> fx.Node:
    """The value of a tensor that is written to, or stands for its data."""
    twin = compat.new_node(graph, operation, (node,), {})
    twin.meta.update(node.meta)
    twin.meta["origin"] = NodeOrigin(node.name, made_by="partition")
    return twin


def as_read(recorder: Recorder, arg: Any) -> Any:
    """What a formula reads: of a detached input the data that it has had."""
    if arg.__class__ is not TraceTensor or not arg.apart:
        return arg
    node = recorder.read(arg.value)
    if arg.value.root.input < 0:
        running = compat.current_autograd_node()
        node.meta.setdefault("detached_for", set()).add(-1 if running is None else compat.sequence_number(running))
        return arg
    return make_tensor(Value(arg.value.spec, _data_of(node), arg.value.held))


def reads_of_results(
    results: Mapping[fx.Node, tuple[int, torch.Tensor | None]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`itself` and `data` of `Tape`; a result is in both where formulas read both, or it is not known.

    Arguments:
        results: what the program gets as it is: its position, and the tensor that autograd knows, where it knows one.
    """
    itself, data = [], []
    for node, (position, carrier) in results.items():
        maker = None if carrier is None else compat.sequence_number(carrier.grad_fn)
        apart = node.meta.pop("detached_for", ())
        reads = [(source is node, user.meta["backward"]) for source, user, forward in uses(node) if not forward]
        if any(whole and number != maker for whole, number in reads):
            itself.append(position)
        if any(not whole or number == maker or number in apart for whole, number in reads):
            data.append(position)
    return tuple(itself), tuple(data)


def _data_of(node: fx.Node) -> fx.Node:
    """A view of an input, or of what it was made to hold, that keeps the data which that has when the forward runs."""
    if "backward" in node.meta:
        return node
    for user in node.users:
        if "apart" in user.meta:
            return user
    last = node
    while last.next.op == "placeholder":
        last = last.next
    with node.graph.inserting_after(last):
        data = duplicate(node.graph, node, aten.alias.default)
    data.meta["apart"] = True
    return data


def read_written(graph: fx.Graph, held: Iterable[tuple[fx.Node, int, torch.Tensor | None]]) -> None:
    """Say what formulas read of tensors that the forward writes to: eager's read those as they are by then.

    Arguments:
        held: what an input holds when the forward has run, its position, and the tensor that autograd knows, where it
            knows one. Who made that reads the data which it had.
    """
    _drop_copies(graph)
    for node, position, carrier in held:
        maker = None if carrier is None else compat.sequence_number(carrier.grad_fn)
        seen = [use for use in uses(node) if not use[2]] if node.op == "call_function" else []
        for kind, itself in (("input", True), ("data", False)):
            if readers := [use for use in seen if (use[0] is node and use[1].meta["backward"] != maker) is itself]:
                read_copy(node, aten.alias.default, readers, node.next).meta["held_by"] = kind, position


def _drop_copies(graph: fx.Graph) -> None:
    """Leave out copies that no formula reads, but for those that results are: not even a view of them has memory of an
    argument, or of another result."""
    owners = [viewed(result) for result in graph.output_node().args[0]]
    for node in list(graph.nodes):
        if "copied" not in node.meta or is_saved(node):
            continue
        source = node.all_input_nodes[0]
        owner = viewed(source)
        if node in owners and (owner.op != "call_function" or owner in owners):
            continue
        node.replace_all_uses_with(source)
        owners = [owner if one is node else one for one in owners]
