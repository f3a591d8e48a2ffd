"""ATen programs as graphs that the minifier can take apart: constants as attributes, sizes as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.expr import Expr, evaluate


def graph_module(program: AtenProgram) -> fx.GraphModule:
    """The program's graph by itself; symbolic sizes are the numbers that it was traced with."""
    hints = {scalar.sym.name: scalar.hint for scalar in program.scalars}

    def number(value: Any) -> Any:
        return evaluate(value, hints) if isinstance(value, Expr) else value

    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    scalars = {spec.name for spec in program.inputs if spec.kind == "scalar"}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in scalars:
            env[node] = hints[node.name]
            continue
        copied = graph.node_copy(node, lambda source: env[source])
        copied.args, copied.kwargs = fx.node.map_aggregate((copied.args, copied.kwargs), number)
        if copied.op == "output":
            copied.args = (tuple(part for part in copied.args[0] if isinstance(part, fx.Node)),)
        env[node] = copied
    constants = {str(n.target): program.constants[str(n.target)] for n in graph.nodes if n.op == "get_attr"}
    return fx.GraphModule(constants, graph)


def inputs_of(program: AtenProgram, real: Sequence[Any] | None, make: Callable[..., torch.Tensor]) -> list[Any]:
    """A value for each placeholder of `graph_module(program)`.

    Arguments:
        real: the values of a call; None where there was none yet.
        make: makes a tensor from size, stride, dtype, device.
    """
    hints: Mapping[str, Any] = {scalar.sym.name: scalar.hint for scalar in program.scalars}
    values: list[Any] = []
    for number, spec in enumerate(program.inputs):
        if spec.kind == "scalar":
            continue
        if real is not None:
            values.append(real[number])
        elif spec.kind == "constant":
            values.append(program.constants[spec.name].detach())
        else:
            one = spec.spec
            size, stride = (tuple(int(evaluate(n, hints)) for n in part) for part in (one.size, one.stride))
            values.append(make(size, stride, one.dtype, str(one.device)))
    return values
