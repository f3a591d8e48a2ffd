"""Graphs of a module under DistributedDataParallel, cut where its buckets of gradients end.

DDP starts to reduce a bucket when all its gradients are there. The backward of one compiled graph gives all gradients
at its end, so nothing would overlap. Here the graph becomes parts, each a node of its own on autograd's tape: while the
backward of an earlier part runs, the gradients of the later ones are already on their way.

In: a captured graph and a function that compiles one. Out: a callable that runs the compiled parts in order. A part is
compiled for the layouts of the values that arrive there: beforehand for those that capture knows of, so that other
ranks can load what one has made, and at a call for any others.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast

from argand import events
from argand.autograd import needs_autograd
from argand.backends.in_parts.buckets import bucket_limits
from argand.backends.in_parts.contest import Alternatives, contest_of, whole_part
from argand.backends.in_parts.parts import CompileGraph, Part
from argand.graph.compat import storage_address
from argand.graph.nodes.module_text import module_text
from argand.graph.operators.collectives import starts
from argand.graph.sizes.symbols import is_dynamic
from argand.quick_dataclasses import dataclass
from argand.runtime.recipes import compile_wrapper


def compile_split(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    ddp: Any,
    compile_graph: CompileGraph,
    *,
    ahead: bool = False,
    contest: bool = False,
) -> Callable[..., Any] | None:
    """The graph in parts that end where the buckets of `ddp` do; None where it stays whole.

    Arguments:
        gm: a captured graph; `example_inputs`: one value per placeholder.
        ddp: the DistributedDataParallel whose forward runs.
        compile_graph: compiles one part, as a backend does. Raises BackendCompilerFailed.
        ahead: parts are compiled before they are called; it looks at what describes their inputs only.
        contest: where whole graphs are faster, they run.
    """
    contest = contest and not any(starts(node.target) for node in gm.graph.nodes)  # ranks call these in one order
    recorded, whole = needs_autograd(gm, example_inputs), None
    stops = cut_places(gm, example_inputs, bucket_limits(ddp), anywhere=True) if contest and recorded else []
    if stops:
        gm.meta["arrivals"] = _arrivals(gm, stops)
        whole = compile_graph(gm, list(example_inputs))
        if gm.meta.pop("arrivals", None) is None:
            _tell(gm, stops)
            return whole
    reason, cuts = "", list[int]()
    if not recorded:
        reason = "no gradients are recorded"
    elif is_dynamic(gm) or "symbols" in gm.meta:
        reason = "sizes of the graph vary"
    elif any(node.op == "get_attr" for node in _output(gm).all_input_nodes):
        reason = "it gives back a constant"
    else:
        cuts = cut_places(gm, example_inputs, bucket_limits(ddp))
        reason = "" if cuts else "all its gradients are in one bucket, or it can be cut nowhere"
    if cuts and contest and contest_of(ddp).over and contest_of(ddp).whole:
        reason, cuts = "its steps were faster whole", []
    if not cuts:
        events.emit("optimize_ddp", "backend", f"the graph stays whole: {reason}", parts=1, reason=reason)
        return whole
    _tell(gm, cuts)
    joined = join_parts(gm, *cut_pieces(gm, cuts), example_inputs if ahead else None, compile_graph)
    return Alternatives(joined, whole_part(gm, compile_graph), len(cuts) + 1) if contest else joined


def _arrivals(gm: fx.GraphModule, cuts: Sequence[int]) -> list[list[int]]:
    """Arguments of the graph that are used first in each part, from the last part to the first."""
    nodes = list(gm.graph.nodes)
    place = {node: position for position, node in enumerate(nodes)}
    parts: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for number, node in enumerate(nodes):
        if node.op == "placeholder" and node.users:
            parts[bisect.bisect_right(cuts, min(place[user] for user in node.users))].append(number)
    return parts[::-1]


def _output(gm: fx.GraphModule) -> fx.Node:
    node: fx.Node = list(gm.graph.nodes)[-1]
    return node


def cut_places(
    gm: fx.GraphModule, example_inputs: Sequence[Any], limits: Iterator[int], *, anywhere: bool = False
) -> list[int]:
    """Before which nodes (positions in the graph) a part begins, ascending.

    Arguments:
        limits: as `bucket_limits` gives them.
        anywhere: also where the graph cannot be cut: a backward that is compiled as one may stop there.
    """
    nodes = list(gm.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    weights = {node: _gradient_bytes(value) for node, value in zip(holders, example_inputs)}
    place = {node: position for position, node in enumerate(nodes)}
    allowed: Container[int] = range(len(nodes)) if anywhere else places_between(nodes)
    ready: dict[int, int] = {}  # at a parameter's first use, the last of its gradient arrives
    for node in holders:
        if weights[node]:
            first = min(place[user] for user in node.users)
            ready[first] = ready.get(first, 0) + weights[node]
    left = sum(ready.values())
    cuts: list[int] = []
    limit, size = next(limits), 0
    for position in range(len(nodes) - 2, len(holders), -1):
        size += ready.get(position, 0)
        left -= ready.get(position, 0)
        if size >= limit and left and position in allowed:
            cuts.append(position)
            limit, size = next(limits), 0
    return cuts[::-1]


def _gradient_bytes(value: Any) -> int:
    """Bytes of the gradient that DDP reduces for an input of the graph."""
    if isinstance(value, torch.nn.Parameter) and value.requires_grad and not hasattr(value, "_ddp_ignored"):
        return int(value.numel() * value.element_size())
    return 0


def places_between(nodes: list[fx.Node]) -> set[int]:
    """Positions before which the graph may be cut.

    Only tensors cross a cut. A tensor does not while something still writes to its memory; nor may a mode be on that
    the graph itself turns on, but for autocast, which each part leaves and the next one enters again.
    """
    place = {node: position for position, node in enumerate(nodes)}
    barred = [False] * (len(nodes) + 1)
    began, until = dict[int, int](), dict[int, int]()  # memory -> where it appears, and its last write
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        here = place[node]
        last = max((place[user] for user in node.users), default=here)
        if node.target is _enter_autocast:
            pass
        elif node.op != "get_attr" and not isinstance(node.meta.get("example_value"), torch.Tensor):
            _bar(barred, here, last)  # a list of tensors, what ends another block
        elif starts(node.target):
            _bar(barred, here, last)  # the part that starts a collective waits for it
        for memory in _memories(node):
            began.setdefault(memory, here)
        if "writes" in node.meta:
            given_to = node.all_input_nodes
            for given in [given_to[number] for number in node.meta["writes"]] or given_to:
                if given.op == "get_attr":
                    return set()
                for memory in _memories(given):
                    until[memory] = here
    held = {memory for node in nodes if node.op == "placeholder" for memory in _memories(node)}
    for memory, last in until.items():
        if memory in began and memory not in held:
            _bar(barred, began[memory], last)
    _bar_modes(nodes, barred)
    return {position for position in range(1, len(nodes)) if not barred[position]}


def _bar(barred: list[bool], begin: int, end: int) -> None:
    """No cut after the node at `begin` up to the one at `end`."""
    for position in range(begin + 1, end + 1):
        barred[position] = True


def _bar_modes(nodes: list[fx.Node], barred: list[bool]) -> None:
    initial = enabled = torch.is_grad_enabled()
    for position, node in enumerate(nodes):
        if node.target is torch._C._set_grad_enabled:
            enabled = node.args[0] is True
        elif "writes" in node.meta or node.op != "call_function" or _is_block(node):
            pass
        elif node.meta.get("example_value") is None:
            _bar(barred, 0, len(nodes) - 1)  # whatever else it sets stays set
        if enabled != initial:
            barred[position + 1] = True


def _is_block(node: fx.Node) -> bool:
    """The node enters or leaves a block: the first holds what the other takes, which no cut parts."""
    inner = [*node.all_input_nodes, *node.users]
    return bool(inner) and all(not isinstance(n.meta.get("example_value"), torch.Tensor) for n in inner)


def _memories(node: fx.Node) -> list[int]:
    """The storages of what a node stands for."""
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    with torch._C.DisableTorchFunction():
        return [
            storage_address(part) for part in parts if isinstance(part, torch.Tensor) and part.layout is torch.strided
        ]


# ----------------------------------------------------------------------- parts


@dataclass(slots=True)
class _Cut:
    """A part before it is compiled.

    Arguments:
        graph: its graph.
        inputs: nodes of the whole graph that are its inputs, in order.
        outputs: nodes of the whole graph that later parts, or the graph's results, need.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    outputs: list[fx.Node]


def cut_pieces(gm: fx.GraphModule, cuts: list[int]) -> tuple[list[_Cut], list[fx.GraphModule]]:
    """The parts."""
    nodes = list(gm.graph.nodes)
    begins, ends = [len(gm.graph.find_nodes(op="placeholder")), *cuts], [*cuts, len(nodes) - 1]
    pieces = [_cut(nodes[:begin], nodes[begin:end], nodes[end:]) for begin, end in zip(begins, ends)]
    return pieces, [fx.GraphModule(gm, cut.graph, class_name=f"submod_{n}") for n, cut in enumerate(pieces)]


def join_parts(
    gm: fx.GraphModule,
    pieces: list[_Cut],
    modules: list[fx.GraphModule],
    example_inputs: Sequence[Any] | None,
    compile_graph: CompileGraph,
) -> Callable[..., Any]:
    """A function that calls the parts.

    Arguments:
        example_inputs: of the graph, where parts are to be compiled now.
    """
    holders = gm.graph.find_nodes(op="placeholder")
    parts = []
    for cut, module in zip(pieces, modules):
        inner = tuple([i for i, node in enumerate(cut.inputs) if node.op != "placeholder"])
        parts.append(Part(module.forward, functools.partial(_itself, module), inner, compile_graph))
    if example_inputs is not None:
        given = dict(zip(holders, example_inputs))
        for cut, part in zip(pieces, parts):
            part.prepare(_expected(cut.inputs, given))
    names: dict[str, Any] = {f"part_{number}": part for number, part in enumerate(parts)}
    return compile_wrapper(_calls(holders, pieces, _output(gm), names), names)


def _itself(module: fx.GraphModule) -> fx.GraphModule:
    return module


def _calls(holders: list[fx.Node], pieces: list[_Cut], output: fx.Node, names: dict[str, Any]) -> str:
    """The text of `call`, which hands what parts make to the later ones, and lets go of it after its last use."""
    known = {node: f"i{number}" for number, node in enumerate(holders)}
    last = {node: number for number, cut in enumerate(pieces) for node in cut.inputs}
    lines = [f"def call({', '.join(known.values())}):"]
    for number, cut in enumerate(pieces):
        known.update((node, f"v{number}_{i}") for i, node in enumerate(cut.outputs))
        fresh = "".join(f"{known[node]}, " for node in cut.outputs)
        given = ", ".join(known[node] for node in cut.inputs)
        lines.append(f"    {fresh + '= ' if fresh else ''}part_{number}({given})")
        inner = [node for node in cut.inputs if node.op != "placeholder" and output not in node.users]
        gone = [known[node] for node in inner if last[node] == number]
        lines += [f"    del {', '.join(gone)}"] if gone else []

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return known[value]
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            inner = "".join(f"{text(item)}, " for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        name = f"c{len(names)}"
        names[name] = value
        return name

    return "\n".join([*lines, f"    return {text(output.args[0])}", ""])


def _tell(gm: fx.GraphModule, cuts: list[int]) -> None:
    """Events with the graph that calls the parts, and the parts."""
    if not events.bus.wanted("optimize_ddp_split_graph") and not events.bus.wanted("optimize_ddp_split_child"):
        return
    pieces, modules = cut_pieces(gm, cuts)
    whole = fx.Graph()
    known = {node: whole.node_copy(node) for node in gm.graph.find_nodes(op="placeholder")}
    for number, cut in enumerate(pieces):
        call = whole.call_module(f"submod_{number}", tuple(known[node] for node in cut.inputs))
        for index, node in enumerate(cut.outputs):
            known[node] = whole.call_function(operator.getitem, (call, index))
            known[node].meta.update(node.meta)
    whole.output(fx.node.map_arg(_output(gm).args[0], known.__getitem__))
    named = {f"submod_{number}": module for number, module in enumerate(modules)}
    joined = fx.GraphModule(named, whole, class_name="SplitGraph")
    events.emit("optimize_ddp_split_graph", "backend", lambda: module_text(joined), graph=joined, parts=len(modules))
    for name, module in named.items():
        events.emit("optimize_ddp_split_child", "backend", lambda m=module: module_text(m), graph=module, child=name)


def _cut(before: list[fx.Node], inside: list[fx.Node], after: list[fx.Node]) -> _Cut:
    """The part of a graph that consists of the nodes `inside`, in the blocks of autocast that these are in."""
    here, later = set(inside), set(after)
    entered = [n for n in before if n.target is _enter_autocast and not n.users.keys().isdisjoint([*inside, *after])]
    inputs: list[fx.Node] = []
    for node in inside:
        for used in node.all_input_nodes:
            if used not in here and used not in inputs and used not in entered and used.op != "get_attr":
                inputs.append(used)
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        known[node] = graph.placeholder(node.name)
        known[node].meta.update(node.meta)

    def copied(node: fx.Node) -> fx.Node:
        if node not in known:  # a constant that an earlier part uses too
            known[node] = graph.node_copy(node)
        return known[node]

    for node in (*entered, *inside):
        known[node] = graph.node_copy(node, copied)
    blocks = [node for node in (*entered, *inside) if node.target is _enter_autocast]
    for end in [user for node in reversed(blocks) for user in node.users if user in later]:
        graph.node_copy(end, copied)
    outputs = [n for n in inside if n.op != "get_attr" and n not in blocks and any(user in later for user in n.users)]
    graph.output(tuple(known[node] for node in outputs))
    return _Cut(graph, inputs, outputs)


class _Activation(torch.autograd.Function):
    """A tensor that an operation made, to autograd."""

    @staticmethod
    def forward(ctx: Any, held: tuple[torch.Tensor], leading: torch.Tensor) -> torch.Tensor:
        return held[0]


def _expected(inputs: list[fx.Node], given: dict[fx.Node, Any]) -> list[Any] | None:
    """Values like those that will arrive at a part; None where nobody can tell.

    Arguments:
        given: of the whole graph's placeholders.
    """
    taken = [memory for node in inputs for memory in _memories(node)]
    values: list[Any] = []
    for node in inputs:
        value = node.meta.get("example_value")
        if node in given:
            values.append(given[node])
        elif _is_plain(value) and taken.count(*_memories(node)) == 1:
            values.append(value)
        else:
            return None
    devices = {value.device for value in given.values() if isinstance(value, torch.Tensor)}
    if len(devices) != 1:
        return None
    return [value if node in given else _like(value, *devices) for node, value in zip(inputs, values)]


def _is_plain(value: Any) -> bool:
    """Whether its layout and dtype say all of a tensor."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        return False
    return not (value.is_conj() or value.is_neg() or value.is_inference())


def _like(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if not value.requires_grad:
        return fresh
    with torch.enable_grad():
        result: torch.Tensor = _Activation.apply((fresh,), torch.empty(0, requires_grad=True))
    return result
