"""Backend "eager": runs the captured graph as it is. Tells whether capture alone is at fault.

Other backends run ATen programs with eager's kernels by `run_eagerly`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from argand import events
from argand.graph.nodes.printing import graph_function
from argand.graph.nodes.program import AtenProgram


def eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The graph's own forward."""
    return gm.forward


def run_eagerly(program: AtenProgram) -> Callable[..., Any]:
    """The program's graph as straight-line Python over ATen's eager kernels."""
    with events.span("compile", "backend", backend="aot_eager"):
        return graph_function(program.graph, {name: program.constants[name] for name in program.constants})
