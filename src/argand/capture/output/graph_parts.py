"""A graph whose sizes depend on data, in parts: what tells a size runs as it stands, what is between is compiled.

A backend that makes code of a graph wants inputs that have its sizes: those of a part come with the tensors of earlier
parts. Parts are functions of their own in the region, so that what holds for any compiled function holds for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import fx

from argand.capture.facts.code import graph_steps
from argand.capture.facts.compat import PrintedGraph
from argand.capture.facts.sources import LocalSource, SequenceItemSource
from argand.capture.facts.values.symbols import Place
from argand.graph.nodes.meta import attribute
from argand.graph.sizes.expr import Expr, Sym, free_symbols

_LEAST = 3  # operations that are worth a graph of their own


def in_parts(gm: fx.GraphModule, region: graph_steps.Whole) -> Callable[..., object] | None:
    """What computes `gm`, which is captured in the region; None where no part of it is worth compiling."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    parts = _parts(gm)
    if not any(compiled for compiled, _ in parts):
        return None
    output = gm.graph.output_node()
    slots = {node: number for number, node in enumerate(placeholders)}
    part_of = {node: number for number, (_, nodes) in enumerate(parts) for node in nodes} | {output: len(parts)}
    steps: list[graph_steps.Step] = []
    for number, (compiled, nodes) in enumerate(parts):

        def is_needed_later(node: fx.Node, number: int = number) -> bool:
            return any(part_of[user] > number for user in node.users)

        takes = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if part_of.get(n) != number))
        takes = [node for node in takes if node.op != "get_attr"]
        gives = list(filter(is_needed_later, nodes))
        drops = [node for node in takes if not is_needed_later(node)]
        varying = list(_varying(takes)) if compiled else None
        for node in gives:
            slots[node] = len(slots)
        places = [slots[n] for n in takes], [slots[n] for n in gives], [slots[n] for n in drops]
        steps.append((_module(gm, nodes, takes, gives).forward, places, varying))
    plain = [value for value in output.args[0] if not isinstance(value, fx.Node)]  # a number
    numbers = iter(range(len(slots), len(slots) + len(plain)))
    results = [slots[value] if isinstance(value, fx.Node) else next(numbers) for value in output.args[0]]
    return graph_steps.in_steps(region, steps, len(slots), plain, results)


def _parts(gm: fx.GraphModule) -> list[tuple[bool, list[fx.Node]]]:
    """The operations in order, in groups; of each, whether it is to be compiled."""
    telling = _telling(gm)
    groups: list[tuple[bool, list[fx.Node]]] = []
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        plain = node not in telling and not _is_own(gm, node)
        if not groups or groups[-1][0] != plain:
            groups.append((plain, []))
        groups[-1][1].append(node)
    merged: list[tuple[bool, list[fx.Node]]] = []
    for plain, nodes in groups:
        compiled = plain and sum("expr" not in node.meta for node in nodes) >= _LEAST
        if merged and merged[-1][0] == compiled:
            merged[-1][1].extend(nodes)
        else:
            merged.append((compiled, nodes))
    return merged


def _telling(gm: fx.GraphModule) -> set[fx.Node]:
    """The operations whose results have sizes, or are numbers, that depend on what is in their arguments."""
    telling: set[fx.Node] = set()
    for node in gm.graph.nodes:
        symbols = _symbols(node)
        if node.op == "placeholder" or symbols <= frozenset().union(*map(_symbols, node.all_input_nodes)):
            continue
        telling.add(node)
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and not isinstance(source.meta.get("example_value"), torch.Tensor):
            telling.add(source)  # it gives several tensors
    return telling


def _symbols(node: fx.Node) -> frozenset[Sym]:
    values = (*(node.meta.get("sizes") or ()), node.meta.get("expr"))
    return frozenset().union(*(free_symbols(value) for value in values if isinstance(value, Expr)))


def _is_own(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node calls a function of argand's, or one with a subgraph."""
    if str(getattr(node.target, "__module__", "")).partition(".")[0] == "argand":
        return True
    return any(
        n.op == "get_attr" and not isinstance(attribute(gm, str(n.target)), torch.Tensor) for n in node.all_input_nodes
    )


def _varying(takes: Sequence[fx.Node]) -> Iterator[str]:
    """The places of sizes that depend on data, and of numbers that vary, among a part's arguments."""
    for at, node in enumerate(takes):
        source = SequenceItemSource(LocalSource("args"), at)
        if "expr" in node.meta:
            yield from (f"{source.name()}: {what}" for what in ("int", "float"))
        for dim, size in enumerate(node.meta.get("sizes") or ()):
            if isinstance(size, Expr):
                yield str(Place(source, "size", dim))


def _module(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], takes: Sequence[fx.Node], gives: Sequence[fx.Node]
) -> fx.GraphModule:
    graph = PrintedGraph()
    copies = {node: graph.placeholder(node.name) for node in takes}
    for node in nodes:
        for held in node.all_input_nodes:
            if held.op == "get_attr" and held not in copies:
                copies[held] = graph.node_copy(held)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs)  # named as in a process that loads it
        copies[node].meta = node.meta.copy()
    graph.output(tuple([copies[node] for node in gives]))
    return fx.GraphModule(gm, graph)
