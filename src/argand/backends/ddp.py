"""Graphs of a module under DistributedDataParallel, cut where its buckets of gradients end.

DDP starts to reduce a bucket when all its gradients are there. The backward of one compiled graph gives all gradients
at its end, so nothing would overlap. Here the graph becomes parts, each a node of its own on autograd's tape: while the
backward of an earlier part runs, the gradients of the later ones are already on their way.

In: a captured graph and a function that compiles one. Out: a callable that runs the compiled parts in order. Each part
is compiled at its first call, for the values that really arrive there, so that layouts and aliasing are eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.autograd import needs_autograd
from argand.autograd.tracing.dynamic import is_dynamic
from argand.config import config
from argand.errors import BackendCompilerFailed
from argand.graph.nodes.module_text import module_text
from argand.graph.operators.collectives import starts
from argand.locks import fork_safe_lock

CompileGraph = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
_FIRST_BUCKET = 1 << 20  # bytes; torch's own, where a version does not tell
_VERSIONS = 8  # of one part; calls with further layouts of its inputs run eagerly


def compile_split(
    gm: fx.GraphModule, example_inputs: Sequence[Any], ddp: Any, compile_graph: CompileGraph
) -> Callable[..., Any] | None:
    """The graph in parts that end where the buckets of `ddp` do; None where it stays whole.

    Arguments:
        gm: a captured graph; `example_inputs`: one value per placeholder.
        ddp: the DistributedDataParallel whose forward runs.
        compile_graph: compiles one part, as a backend does. Raises BackendCompilerFailed.
    """
    reason, cuts = "", list[int]()
    if not needs_autograd(gm, example_inputs):
        reason = "no gradients are recorded"
    elif is_dynamic(gm) or "symbols" in gm.meta:
        reason = "sizes of the graph vary"
    else:
        cuts = cut_places(gm, example_inputs, bucket_limits(ddp))
        reason = "" if cuts else "all its gradients are in one bucket, or it can be cut nowhere"
    if not cuts:
        events.emit("optimize_ddp", "backend", f"the graph stays whole: {reason}", parts=1, reason=reason)
        return None
    return _joined(gm, cuts, compile_graph)


def bucket_limits(ddp: Any) -> Iterator[int]:
    """Bytes of gradients that fill each bucket, in the order in which gradients arrive; the last goes on for ever."""
    bucket_config = getattr(ddp, "_bucket_config", None)
    usual = int(ddp.bucket_bytes_cap)
    each: tuple[int, ...] = tuple(getattr(bucket_config, "per_bucket_bytes_caps", ()))
    if not each:
        default = getattr(ddp, "bucket_bytes_cap_default", False)
        first = getattr(bucket_config, "first_bucket_bytes_cap", _FIRST_BUCKET if default else usual)
        each = (int(first), usual)
    yield from each
    while True:
        yield each[-1]


def cut_places(gm: fx.GraphModule, example_inputs: Sequence[Any], limits: Iterator[int]) -> list[int]:
    """Before which nodes (positions in the graph) a part begins, ascending.

    Arguments:
        limits: as `bucket_limits` gives them.
    """
    nodes = list(gm.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    weights = {node: _gradient_bytes(value) for node, value in zip(holders, example_inputs)}
    place = {node: position for position, node in enumerate(nodes)}
    allowed = _allowed(nodes, place)
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


def _allowed(nodes: list[fx.Node], place: dict[fx.Node, int]) -> set[int]:
    """Positions before which the graph may be cut.

    Only tensors cross a cut. A tensor does not while something still writes to its memory; nor may a mode (gradients
    off, autocast) be on that the graph itself turns on.
    """
    barred = [False] * (len(nodes) + 1)
    began, until = dict[int, int](), dict[int, int]()  # memory -> where it appears, and its last write
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        here = place[node]
        last = max((place[user] for user in node.users), default=here)
        if node.op != "get_attr" and not isinstance(node.meta.get("example_value"), torch.Tensor):
            _bar(barred, here, last)  # a list of tensors, what ends an autocast block
        elif starts(node.target):
            _bar(barred, here, last)  # the part that starts a collective waits for it
        for memory in _memories(node):
            began.setdefault(memory, here)
        if node.meta.get("writes"):
            for given in node.all_input_nodes:
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
        elif node.meta.get("writes") or node.op != "call_function" or _is_block(node):
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
            part.untyped_storage()._cdata
            for part in parts
            if isinstance(part, torch.Tensor) and part.layout is torch.strided
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


def _joined(gm: fx.GraphModule, cuts: list[int], compile_graph: CompileGraph) -> Callable[..., Any]:
    """A graph that calls the parts, as a callable."""
    nodes = list(gm.graph.nodes)
    whole = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        if node.op == "placeholder":
            known[node] = whole.node_copy(node)
    parts: dict[str, Any] = {}
    texts: list[tuple[str, fx.GraphModule]] = []
    begins = [len(known), *cuts]
    for number, (begin, end) in enumerate(zip(begins, [*cuts, len(nodes) - 1])):
        cut = _cut(nodes[begin:end], nodes[end:])
        name = f"submod_{number}"
        module = fx.GraphModule(gm, cut.graph, class_name=name)
        inner = [i for i, node in enumerate(cut.inputs) if node.op != "placeholder"]
        parts[name] = _Part(module, inner, compile_graph)
        texts.append((name, module))
        call = whole.call_module(name, tuple(known[node] for node in cut.inputs))
        for index, node in enumerate(cut.outputs):
            known[node] = whole.call_function(_item, (call, index))
            known[node].meta.update(node.meta)
    whole.output(fx.node.map_arg(nodes[-1].args[0], known.__getitem__))
    joined = fx.GraphModule(parts, whole, class_name="SplitGraph")
    count = len(parts)
    events.emit("optimize_ddp_split_graph", "backend", lambda: module_text(joined), graph=joined, parts=count)
    for name, module in texts:
        events.emit("optimize_ddp_split_child", "backend", lambda m=module: module_text(m), graph=module, child=name)
    run: Callable[..., Any] = joined.forward
    return run


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _cut(inside: list[fx.Node], after: list[fx.Node]) -> _Cut:
    """The part of a graph that consists of these nodes."""
    here, later = set(inside), set(after)
    inputs: list[fx.Node] = []
    for node in inside:
        for used in node.all_input_nodes:
            if used not in here and used not in inputs and used.op != "get_attr":
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

    for node in inside:
        known[node] = graph.node_copy(node, copied)
    outputs = [node for node in inside if node.op != "get_attr" and any(user in later for user in node.users)]
    graph.output(tuple(known[node] for node in outputs))
    return _Cut(graph, inputs, outputs)


class _Part(torch.nn.Module):
    """One part: compiled at its first call, and again where values come with other layouts.

    Arguments:
        gm: its graph.
        inner: positions of the arguments that earlier parts make. The others are under the guards of the whole graph.
        compile_graph: as for `compile_split`.
    """

    def __init__(self, gm: fx.GraphModule, inner: list[int], compile_graph: CompileGraph) -> None:
        super().__init__()
        self.gm = [gm]  # not a submodule: the whole graph has the parts' code but not their state
        self.inner = inner
        self.compile_graph = compile_graph
        self.compile_id = events.bus.compile_id
        self.versions: dict[Any, Callable[..., Any]] = {}
        self.lock = fork_safe_lock()

    def __call__(self, *args: Any) -> Any:
        key = (torch.is_grad_enabled(), *[_layout(args[i]) for i in self.inner])
        version = self.versions.get(key)
        if version is None:
            version = uncaptured(_C.call_locked, self.lock, _C.call_restoring, self._make, key, args)
        return version(*args)

    def _make(self, key: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
        version = self.versions.get(key)
        if version is None:
            version = self.gm[0].forward
            if len(self.versions) < _VERSIONS:
                with events.bus.compiling(self.compile_id), events.span("compile_part", "backend"):
                    version = self._compiled(list(args))
            self.versions[key] = version
        return version

    def _compiled(self, args: list[Any]) -> Callable[..., Any]:
        """The part for these arguments. The parts before it have run; there is no way back to capture, which would run
        the frame eagerly under `config.suppress_errors`: that is done here."""
        try:
            return self.compile_graph(self.gm[0], args)
        except BackendCompilerFailed as error:
            if not config.suppress_errors:
                raise
            events.emit("fallback", "backend", str(error), scope="graph", reason=str(error), backend="ddp")
            forward: Callable[..., Any] = self.gm[0].forward
            return forward


def _layout(value: Any) -> Any:
    return value.requires_grad, value.shape, value.stride(), value.dtype
