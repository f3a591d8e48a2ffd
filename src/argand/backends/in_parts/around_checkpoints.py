"""Graphs with checkpoints whose backward writes to buffers once more, as eager's does (statistics of a batch norm).

No trace of forward and backward has that second write, and how much of a body runs again depends on what its operations
save. So the graph is cut around such checkpoints, which stay torch's own; what lies between them is compiled. In: a
captured graph and a function that compiles one. Out: a callable that runs the parts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from argand import events
from argand.autograd import needs_autograd
from argand.backends.in_parts.cuts import cut_pieces, join_parts, places_between
from argand.backends.in_parts.parts import CompileGraph, writing_again
from argand.graph.sizes.symbols import is_dynamic


def compile_around(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph
) -> Callable[..., Any]:
    """The graph in parts; as it is where it cannot be cut, or sizes vary.

    Arguments:
        gm: a captured graph; `example_inputs`: one value per placeholder.
        compile_graph: compiles one part, as a backend does.
    """
    if not needs_autograd(gm, example_inputs):
        return compile_graph(gm, list(example_inputs))
    nodes = list(gm.graph.nodes)
    cuts = _cuts(nodes)
    varies, constant = is_dynamic(gm) or "symbols" in gm.meta, "get_attr" in [n.op for n in nodes[-1].all_input_nodes]
    if varies or constant or not places_between(nodes).issuperset(cuts):
        why = "sizes vary" if varies else "it is in a block"
        reason = f"the backward of a checkpoint writes to buffers, and {why}"
        events.emit("fallback", "backend", reason, scope="graph", reason=reason, backend="checkpoints")
        return gm.forward

    def compile_part(module: fx.GraphModule, args: list[Any]) -> Callable[..., Any]:
        return module.forward if writing_again(module) else compile_graph(module, args)

    return join_parts(gm, *cut_pieces(gm, cuts), None, compile_part)


def _cuts(nodes: list[fx.Node]) -> list[int]:
    """Before and behind each such checkpoint."""
    first = sum(node.op == "placeholder" for node in nodes)
    cuts = set[int]()
    for position, node in enumerate(nodes):
        if "writes_again" not in node.meta:
            continue
        begin, end = position, position + 1
        while nodes[begin - 1].op == "get_attr":
            begin -= 1
        while nodes[end].target is operator.getitem and nodes[end].args[0] is node:
            end += 1
        cuts |= {begin, end}
    return sorted(cuts - {*range(first + 1), len(nodes) - 1})
