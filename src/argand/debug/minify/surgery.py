"""Smaller graphs out of a graph: pieces of it, with what was cut off turned into inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from argand.debug.minify.symbols import refresh
from argand.debug.tensors import clone, clone_inputs, steady
from argand.debug.trial.eager import values_of_nodes
from argand.graph.nodes.ancestors import ancestors as computed_from
from argand.graph.nodes.printing import target_name
from argand.quick_dataclasses import dataclass

_CACHED_NODES = 400  # values of programs up to this size are computed once and kept
_PLAIN = (int, float, bool, str, type(None), complex, torch.dtype, torch.device, torch.memory_format, torch.layout)


@dataclass(slots=True)
class Program:
    """A graph and the values that it fails on.

    Arguments:
        gm: the graph; its placeholders are in the order of `inputs`.
        inputs: tensors or plain values.
    """

    gm: fx.GraphModule
    inputs: list[Any]
    _key: str = field(default="", repr=False)
    _values: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def graph(self) -> fx.Graph:
        return self.gm.graph

    @property
    def nodes(self) -> int:
        """Nodes, placeholders and output included: what the log lines count."""
        return len(self.gm.graph.nodes)

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.gm.graph.nodes if node.op not in ("placeholder", "output")]

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.gm.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[fx.Node]:
        """Nodes that are results, each once."""
        return list(self.graph.output_node().all_input_nodes)

    @property
    def key(self) -> str:
        """Equal for programs that compute the same from inputs of the same kind."""
        if not self._key:
            parts = []
            for node in self.graph.nodes:
                parts.append(f"{node.name} {node.op} {target_name(node.target)} {node.args} {node.kwargs}")
            parts += [describe_input(value) for value in self.inputs]
            parts += sorted(self.gm.meta)
            self._key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
        return self._key

    def values(self, names: set[str]) -> Mapping[str, Any]:
        """What the nodes of these names are when the program runs eagerly."""
        if self._values is None or not names <= self._values.keys():
            self._values = values_of(self, None if self.nodes <= _CACHED_NODES else names)
        return self._values


def is_call(node: fx.Node) -> bool:
    """Whether a node computes something."""
    return node.op not in ("placeholder", "output", "get_attr")


def rebuilt(program: Program, graph: fx.Graph, inputs: list[Any]) -> Program:
    """A graph with the attributes of the program's, and what capture said of that as a whole."""
    gm = fx.GraphModule(program.gm, graph)
    gm.meta.update(program.gm.meta)
    if "symbols" in gm.meta:
        refresh(gm, inputs)
    return Program(gm, inputs)


def describe_input(value: Any) -> str:
    """The metadata of an input, in short."""
    if isinstance(value, torch.Tensor):
        grad = " grad" if value.requires_grad else ""
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}{value.device}{grad}"
    return repr(value)


def values_of(program: Program, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Run the program eagerly; the values of the nodes named (of all, when None)."""
    with steady():
        return values_of_nodes(program.gm, clone_inputs(program.inputs), wanted, clone)


def extract(
    program: Program,
    keep: Callable[[fx.Node], bool],
    outputs: Sequence[fx.Node],
    values: Callable[[set[str]], Mapping[str, Any]],
    *,
    drop_inputs: bool = True,
) -> Program | None:
    """The part of a program that consists of some of its nodes.

    Arguments:
        keep: which calls stay. Results of the others that are still read become inputs, or constants when they are
            plain numbers; one whose result is neither (a list of tensors) stays after all.
        outputs: what the part returns; plain values among them are left out.
        values: from names of nodes to what they are when the program runs.
        drop_inputs: leave out inputs that nobody reads.

    Returns:
        the part; None when nothing would be left to return.
    """
    kept = {node for node in program.calls if keep(node)}
    cut = _boundary(kept, outputs, values)
    if cut is None:
        return None
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    inputs: list[Any] = []
    read = {source for node in kept for source in node.all_input_nodes} | {node for node in outputs if node in kept}
    for node, value in zip(program.placeholders, program.inputs):
        if not drop_inputs or node in read or node in outputs:
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
            inputs.append(value)
    for node in program.calls:
        if node in kept or node not in cut:
            continue
        if isinstance(cut[node], torch.Tensor):
            env[node] = graph.placeholder(node.name)
            env[node].meta = {key: value for key, value in node.meta.items() if key != "source"}
            inputs.append(cut[node])
        else:
            env[node] = cut[node]
    for node in program.calls:
        if node in kept:
            env[node] = graph.node_copy(node, lambda source: env[source])
    results = [env[node] for node in outputs if isinstance(env.get(node), fx.Node)]
    if not results:
        return None
    graph.output(tuple(results))
    return rebuilt(program, graph, inputs)


def _boundary(
    kept: set[fx.Node],
    outputs: Sequence[fx.Node],
    values: Callable[[set[str]], Mapping[str, Any]],
) -> dict[fx.Node, Any] | None:
    """Values of dropped nodes that kept ones read; nodes whose value cannot be an input join `kept`."""
    while True:
        needed = {s for node in kept for s in node.all_input_nodes if s not in kept and s.op != "placeholder"}
        needed |= {node for node in outputs if node not in kept and node.op != "placeholder"}
        attributes = {node for node in needed if node.op == "get_attr"}
        if attributes:
            kept |= attributes
            continue
        if not needed:
            return {}
        by_name = values({node.name for node in needed})
        wrong = {node for node in needed if not _can_be_input(by_name.get(node.name))}
        if not wrong:
            return {node: by_name[node.name] for node in needed}
        if wrong <= kept:
            return None
        kept |= wrong


def _can_be_input(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_nested
    if isinstance(value, (tuple, list)):
        return all(_can_be_input(item) and not isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, _PLAIN)


def with_outputs(program: Program, outputs: Sequence[fx.Node]) -> Program | None:
    """The same nodes, returning some of the results only."""
    return extract(program, lambda node: True, outputs, lambda names: {}, drop_inputs=False)


def ancestors(graph: fx.Graph, name: str, but: Collection[str] = ()) -> frozenset[str]:
    """Names of the nodes from which the node of that name is computed, itself included, as far as nodes `but` these."""
    start = [node for node in graph.nodes if node.name == name and name not in but]
    above = computed_from(start, lambda node: [one for one in node.all_input_nodes if one.name not in but])
    return frozenset([node.name for node in above])
