"""`Scope`: a graph that is recorded inside another one; what it uses of the outer graphs becomes its input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx

from argand import errors
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.values.symbolic import SymbolicBool, SymbolicNumber
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.sizes import symbolic_tensors
from argand.graph.compat import storage_address


def lift(builder: GraphBuilder, info: TensorInfo) -> fx.Node:
    """The node that stands for a tensor in the graph being recorded, made an input of every graph in between.

    Raises:
        GraphBreak: the tensor was made in a subgraph that is finished.
    """
    home = info.node.graph
    scopes = builder.scopes
    if home is builder.root:
        first = 0
    else:
        first = next((i + 1 for i, scope in enumerate(scopes) if scope.graph is home), -1)
        if first < 0:
            first = next((i for i, s in enumerate(scopes) if s.feeds is not None and s.feeds.graph is home), -1)
        if first < 0:
            raise escaped(builder, home)
    refuse_data(builder, info)
    node = info.node
    for scope in scopes[first:]:
        known = scope.lifted.get(id(info))
        if known is None:
            known = placeholder(scope.graph, info.node.name)
            known.meta["example_value"] = info.tensor
            known.meta.update({key: info.node.meta[key] for key in ("sizes", "expr") if key in info.node.meta})
            scope.lifted[id(info)] = known
            scope.order.append(info)
        node = known
    return node


def number(builder: GraphBuilder, value: SymbolicNumber) -> object:
    """A number that varies in the graph being recorded: an input of it, or a constant from now on."""
    dynamics = builder.dynamics
    if dynamics is None or type(value) is SymbolicBool:
        return value.number()
    if not dynamics.fits(value) or (dynamics.unbacked is not None and dynamics.unbacked.among(value.expr)):
        return value.number()
    return lift(builder, dynamics.nodes(builder).outside(value.expr))


def refuse_data(builder: GraphBuilder, info: TensorInfo) -> None:
    """Sizes that depend on data are none of a subgraph's inputs."""
    if symbolic_tensors.on_data(builder, info):
        fixed_sizes(builder, info)


def fixed_sizes(builder: GraphBuilder, info: TensorInfo) -> None:
    """What is captured for the sizes of this call: where sizes vary, capture starts again without."""
    if info.dynamic is not None and builder.dynamics is not None:
        symbolic_tensors.give_up(builder, builder.dynamics.table.symbols)


def escaped(builder: GraphBuilder, home: fx.Graph) -> errors.GraphBreak:
    """The break for a tensor that left the function in which it was made otherwise than as its result."""
    what, sequence = builder.finished.get(id(home), ("a function that became a subgraph", -1))
    stop = errors.graph_break(kind="tensor leaves a subgraph", context=what)
    if sequence >= 0:
        stop.sequence = sequence
    return stop


def placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """A new placeholder, its argument named as the node."""
    node = graph.placeholder(name)
    node.target = node.name
    return node


def read_inputs(graph: fx.Graph, inputs: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Those inputs of a finished graph that something reads; it loses the others.

    A node's name is its argument's in lower case, and another one where that is taken: the code of a graph gives one
    to the other, argument after argument, and must not so write over an argument that comes later (`h = H; h_1 = h`).
    """
    for info in inputs:
        if not info.node.users:
            graph.erase_node(info.node)
    read = [info for info in inputs if info.node.users]
    named = {info.node.name: info.node for info in read}
    for info in read:
        if named.get(str(info.node.target), info.node) is not info.node:
            info.node.target = info.node.name
    return read


def placeholders_first(graph: fx.Graph) -> None:
    """Move placeholders that were made late to the front, in their order."""
    anchor: fx.Node | None = None
    moving = False
    for node in list(graph.nodes):
        if node.op != "placeholder":
            moving = True
            continue
        if moving and anchor is not None:
            anchor.append(node)
        elif moving:
            next(iter(graph.nodes)).prepend(node)
        anchor = node


def not_passed_on(builder: GraphBuilder, outputs: Sequence[object]) -> list[object]:
    """Results but those that an autograd.Function passed on, or views of its arguments, and that are alone in their
    memory, which is no input's: the transformed code passes them on in the same way."""
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)] if builder.passed_on else []
    with torch._C.DisableTorchFunction():
        places = {id(each): builder.passed_on.get(id(each)) or {storage_address(each)} for each in tensors}
    count = Counter(address for each in places.values() for address in each)
    alone = {
        which for which, each in places.items()
        if builder.memories.outside.keys().isdisjoint(each) and all(count[address] == 1 for address in each)
    }  # fmt: skip
    return [value for value in outputs if id(value) not in alone & builder.passed_on.keys()]
