"""Nodes of autograd's between a compiled graph, which is one node for all its results and inputs, and each result.

In eager each result has a node of its own: a backward that does not come to it leaves its hooks alone, and one that
passes it on the way from another result calls them with the gradient so far. The nodes here stand for those. A result
that others are computed from is *passed*: while somebody looks at its gradient, the others' nodes hand it what they
contribute, and the graph computes the inputs' gradients from the results' own.

Where some inputs are reached from some results only, a backward through the graph's own node would come to all of them,
with nothing for some. That shows where these are no leaves, or have hooks. There, the graph's own node is no part of
the tape, but a node for each kind of input is; the first that runs, which is after the nodes of all results that a
backward comes to, computes the gradients of all.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph import compat
from argand.runtime.tape.arrivals import CompiledFunction
from argand.runtime.tape.gradients import Gradients
from argand.runtime.tape.plan import Group, Plan


def has_own_nodes(plan: Plan) -> bool:
    """Whether results and inputs of a graph hang together in more than one way."""
    return len(plan.groups) > 1


class _Run:
    """How far one backward has come.

    Arguments:
        apart: results hand each other what they contribute; None until one comes that has something to hand.
        grads: per result of the forward, what came to its node.
        came: places of the groups that it came to.
        of_inputs: gradients of the inputs, by position, that are to be handed out yet; None before they are computed.
    """

    __slots__ = ("apart", "came", "grads", "of_inputs")

    def __init__(self, results: int) -> None:
        self.apart: bool | None = None
        self.grads: list[Any] = [None] * results
        self.came: set[int] = set()
        self.of_inputs: dict[int, Any] | None = None


class ResultNodes:
    """The nodes of a graph's calls.

    What a call knows hangs on the node of the whole graph, where others than torch's own are around it: `runs`, the
    backwards that came to its results (by their numbers: a hook may start another); `by_input`, it is no part of the
    tape; `hooked`, a result that others are computed from has, or had, a hook; and weak references to such results, to
    the nodes of results and to those of inputs.
    """

    def __init__(self, plan: Plan, gradients: Gradients) -> None:
        self.plan = plan
        self.gradients = gradients
        every = len(plan.groups)
        counts = [sum(place in group.classes for group in plan.groups) for place in range(len(plan.classes))]
        partly = [position for positions, count in zip(plan.classes, counts) if count < every for position in positions]
        self.pick = operator.itemgetter(*partly, *partly[:1]) if partly else None
        followed = frozenset([*plan.passed, *plan.opaque])
        self.followed = frozenset(place for place, one in enumerate(plan.groups) if followed.intersection(one.numbers))
        device = plan.tangents[0].device
        # A gradient that is none is handed on by the thread of the CPU, ahead of its turn.
        self.signal = None if device.type == "cpu" else torch.empty(0, device=device)

    def around(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """The graph's function with nodes for its results.

        Arguments:
            apply: the function, which puts a call on the tape as one node.
        """
        plan, pick = self.plan, self.pick
        add = compat.node_adder()
        groups = list(enumerate(plan.groups))
        plain = [
            len(group.numbers) == 1
            and not group.passed
            and place not in self.followed
            and add is not None
            and not plan.tangents[group.numbers[0]].dtype.is_complex  # which torch's operation refuses
            for place, group in groups
        ]

        adds = [plan.differentiable[group.numbers[0]] for place, group in groups if plain[place] and group.seen]
        others = any(not plain[place] and (group.seen or group.passed) for place, group in groups)

        def call(*inputs: Any) -> Any:
            if not others and add is not None and (pick is None or not any(map(_shows, pick(inputs)))):
                out = apply(*inputs)
                for position in adds:
                    add(out[position])
                return out
            return with_nodes(inputs)

        def with_nodes(inputs: Sequence[Any]) -> list[Any]:
            held: list[Any] = []
            tokens = []
            by_input = pick is not None and any(map(_shows, pick(inputs)))
            for places in plan.classes if by_input else ():
                tokens.append(_Inputs.apply(self, held, places, *[inputs[place] for place in places]))
            out = list(apply(*inputs))
            node = out[plan.differentiable[0]].grad_fn
            node.runs, node.by_input, node.hooked, node.results, node.looked_at = {}, by_input, False, [], []
            node.inputs_nodes = [weakref.ref(token.grad_fn) for token in tokens]
            held.append(node)
            if by_input:  # before torch 2.12, what keeps the node's object does not keep what it saved
                held.append(compat.node_owner(out[plan.differentiable[0]]))
            for place, group in groups:  # in eager's order, in which hooks run
                if not by_input and plain[place] and add is not None:
                    if group.seen:
                        add(out[plan.differentiable[group.numbers[0]]])
                elif by_input or group.seen or group.passed:
                    self._put(node, place, group, out, tokens)
            return out

        return call

    def _put(self, node: Any, place: int, group: Group, out: list[Any], tokens: list[Any]) -> None:
        """Put a node between results and the graph, or its inputs."""
        positions = [self.plan.differentiable[number] for number in group.numbers]
        results = [out[position] for position in positions]
        leading = [tokens[at] for at in group.classes] if node.by_input else results
        passed = [out[self.plan.differentiable[number]] for number in group.passed]
        nodes = Results.apply(self, node, place, results, probe().leaf, *leading, *passed)
        for position, result in zip(positions, nodes):
            out[position] = result
            if node.handed is not None:
                node.handed.note(position, result)
        node.results.append((place, weakref.ref(nodes[0].grad_fn)))
        if place in self.followed:
            node.looked_at += [weakref.ref(result) for result in nodes]

    def contributions(self, node: Any, place: int, grads: Sequence[Any]) -> dict[int, Any]:
        """Gradients have come to a node of results: what these contribute to the gradients of others."""
        plan = self.plan
        group = plan.groups[place]
        run = _run_of(node, len(plan.handed_over))
        run.came.add(place)
        own: list[Any] = [None] * len(run.grads)
        for number, grad in zip(group.numbers, grads):
            own[plan.differentiable[number]] = grad
            if node.by_input:
                run.grads[plan.differentiable[number]] = grad
        if not (group.passed or plan.opaque) or all(grad is None for grad in grads):
            return {}
        if run.apart is None:
            run.apart = _is_looked_at(node)
            if run.apart and plan.opaque:
                raise RuntimeError(_OPAQUE)
        return self.gradients.of_passed(node, own) if run.apart and group.passed else {}

    def of_inputs(self, node: Any, places: Sequence[int]) -> list[Any]:
        """Gradients of some of the inputs, from what came to the nodes of results."""
        run = _run_of(node, len(self.plan.handed_over))
        if run.of_inputs is None:
            # With several devices, nodes need not run in their order.
            pending = any(_will_run(result) for place, result in node.results if place not in run.came)
            keep = pending or compat.keeps_graph()
            gradients = self.gradients.of_inputs(node, run.grads, keep=keep, apart=bool(run.apart))
            if pending:
                return [gradients[position] for position in places]
            run.of_inputs = {}
            for reference, each in zip(node.inputs_nodes, self.plan.classes):
                if _will_run(reference):
                    run.of_inputs.update([(position, gradients[position]) for position in each])
        handed = [run.of_inputs.pop(position) for position in places]
        if not run.of_inputs:
            del node.runs[compat.running_backward()]
        return handed


def _shows(value: Any) -> bool:
    """Whether it shows that a backward came to an input without a gradient for it."""
    return value.grad_fn is not None or bool(value._backward_hooks or value._post_accumulate_grad_hooks)


def are_apart(node: Any) -> bool:
    """Whether results have handed each other what they contribute, in the backward that comes to the graph's node."""
    run = node.runs.pop(compat.running_backward(), None) if node.runs else None
    return run is not None and bool(run.apart)


def _run_of(node: Any, results: int) -> _Run:
    """How far the backward has come that runs in this thread."""
    task = compat.running_backward()
    run: _Run | None = node.runs.get(task)
    if run is None:
        run = node.runs[task] = _Run(results)
    return run


def _is_looked_at(node: Any) -> bool:
    """Whether somebody looks at the gradient of a result that others are computed from."""
    if node.hooked or not compat.will_run(probe().node):  # gradients of some tensors are asked for, maybe of results
        return True
    results = [reference() for reference in node.looked_at]
    return any(result is not None and result.retains_grad for result in results)


def _will_run(reference: weakref.ref[Any]) -> bool:
    node = reference()
    return node is not None and compat.will_run(node)


class _Probe:
    """A leaf that nobody asks a gradient of: a backward comes to its node where it goes to all leaves."""

    def __init__(self) -> None:
        with torch.enable_grad(), compat.outside_of_modes():
            self.leaf = torch.zeros((), device="cpu", requires_grad=True)
            self.node = self.leaf.view_as(self.leaf).grad_fn.next_functions[0][0]


@functools.cache
def probe() -> _Probe:
    """The process's own."""
    return _Probe()


class _Inputs(torch.autograd.Function):
    """Stands for the way from a graph to the inputs that the same results lead to. Its result is empty."""

    @staticmethod
    def forward(ctx: Any, nodes: ResultNodes, held: list[Any], places: tuple[int, ...], *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.nodes, ctx.held, ctx.places = nodes, held, places
        return torch.empty(0, device=nodes.plan.tangents[0].device)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, None, None, *ctx.nodes.of_inputs(ctx.held[0], ctx.places))


class Results(torch.autograd.Function):
    """Stands for an operation of eager's in a compiled graph."""

    @staticmethod
    def forward(ctx: Any, nodes: ResultNodes, node: Any, place: int, results: list[Any], *leading: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.nodes, ctx.node, ctx.place = nodes, node, place
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        nodes: ResultNodes = ctx.nodes
        group = nodes.plan.groups[ctx.place]
        contributed = nodes.contributions(ctx.node, ctx.place, grads)
        handed = [nodes.signal] * len(group.classes) if ctx.node.by_input else grads
        return (None, None, None, None, None, *handed, *[contributed.get(number) for number in group.passed])


SILENT = "argand_silent"
"""An attribute of hooks that look at no gradient."""


def hands_on(node: Any) -> bool:
    """Whether a node stands for results, and hands the graph's own node their gradients while nobody looks at them."""
    return isinstance(node, _NODE) and not node.node.by_input and not node.node.hooked


def graphs_node(node: Any) -> Any:
    """The node of the compiled graph that a result's node belongs to; None where there is none."""
    for _ in range(_DEEPEST):
        if isinstance(node, _NODE):
            return node.node
        if getattr(getattr(node, "_forward_cls", None), "compiled_moves", None) is not None:
            return node
        edges: Any = () if node is None else node.next_functions
        node = edges[0][0] if len(edges) == 1 else None
    return None


_DEEPEST = 4
"""Nodes from a result to the graph's: its own, and those of the views that it is handed out as."""


def is_own(node: Any) -> bool:
    """Whether a node is one of those between a compiled graph and its results or inputs."""
    return isinstance(node, (_NODE, _Inputs._backward_cls, CompiledFunction._backward_cls))


def _noticed(name: str) -> Callable[..., Any]:
    """A method of the node that registers a hook."""

    def method(self: Any, *args: Any) -> Any:
        if self.place in self.nodes.followed and not getattr(args[0], SILENT, False):
            self.node.hooked = True
        return getattr(super(_NODE, self), name)(*args)

    return method


_NODE: Any = Results._backward_cls
for _name in ("register_hook", "register_prehook", "_register_hook_dict"):
    setattr(_NODE, _name, _noticed(_name))

_OPAQUE = (
    "argand: the gradient of a result that others are computed from was asked for, by a hook, retain_grad or "
    'torch.autograd.grad, and the compiled graph does not compute it apart. Run the function with backend="eager".'
)
