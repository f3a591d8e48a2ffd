"""Shared by the tests of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from argand.autograd import trace_inference
from argand.graph.nodes.program import AtenProgram


def traced(fn: Callable[..., Any], *args: Any) -> AtenProgram:
    graph = fx.Graph()
    names = [graph.placeholder(f"x{i}") for i in range(len(args))]
    graph.output(graph.call_function(fn, tuple(names)))
    return trace_inference(fx.GraphModule(nn.Module(), graph), args)
