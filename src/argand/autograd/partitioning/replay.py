"""The forward of a joint graph as a function that eager's autograd can record, with the seeds that a call drew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.autograd.tracing.joint import JointProgram
from argand.graph import compat
from argand.graph.nodes.ancestors import ancestors
from argand.graph.nodes.printing import graph_function
from argand.graph.operators.random_ops import draws_seed, random_ops
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replay:
    """Arguments:
    graph: of the forward.
    run: takes the forward's inputs and the seeds, returns the graph's differentiable results.
    read: positions of the inputs that these depend on.
    passed: positions of the inputs that operations are given.
    """

    graph: fx.Graph
    run: Callable[..., Any]
    read: frozenset[int]
    passed: frozenset[int]


def replay_of(joint: JointProgram) -> Replay | None:
    """None where an operation is not torch's own, or would draw other numbers."""
    program = joint.program
    outputs: Any = program.output_node.args[0]
    wanted = [outputs[position] for position in joint.differentiable]
    inside = ancestors(wanted)
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = [node for node, spec in zip(program.placeholders, program.inputs) if spec.kind != "tangent"]
    seeds = [node for node in program.graph.nodes if draws_seed(node.target)]
    if any(node.meta["device"].type != "cpu" for node in seeds):  # a graph of CUDA's writes its results anew
        return None
    for node in (*inputs, *seeds):
        env[node] = graph.placeholder(node.name)
        env[node].meta.update(node.meta)
    for node in program.graph.nodes:
        if node in env or node not in inside:
            continue
        if node.op == "call_function" and not _can_be_recorded(node.target):
            return None
        env[node] = compat.copy_node(graph, node, env.__getitem__)
    graph.output(tuple([env[node] for node in wanted])).meta["val"] = ()
    read = ancestors(wanted, lambda node: [one for one in node.all_input_nodes if one not in unread_arguments(node)])
    run = graph_function(graph, program.constants, "replay")
    places = list(enumerate(inputs))
    return Replay(graph, run, *[frozenset(at for at, node in places if node in nodes) for nodes in (read, inside)])


def unread_arguments(node: fx.Node) -> tuple[Any, ...]:
    """Arguments that only what is written depends on: the statistics that a batch norm keeps while it trains."""
    training = node.target is torch.ops.aten._native_batch_norm_legit_functional.default and node.args[5] is True
    return (node.args[3], node.args[4]) if training else ()


def _can_be_recorded(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload):
        return True
    return func is random_ops().uniform or (func.namespace == "aten" and not compat.is_random(func))
