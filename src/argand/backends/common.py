"""What every backend that traces shares: when to run eagerly instead, events, the runtime wrapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from argand import events
from argand.autograd import needs_autograd, trace_inference, wrap
from argand.errors import AutogradError
from argand.graph.printing import readable
from argand.graph.program import AtenProgram

CompileProgram = Callable[[AtenProgram], Callable[..., Any]]


def compile_inference(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_program: CompileProgram,
    *,
    backend: str,
    boxed: bool = False,
) -> Callable[..., Any]:
    """Trace `gm`, compile the program, wrap it; or `gm.forward` where that is not possible.

    Arguments:
        compile_program: makes a callable of the graph's inputs from the program (one list argument when `boxed`).
        backend: name for events.
    """
    if needs_autograd(gm, example_inputs):
        _report(backend, "gradients are needed: training is compiled in a later version", gm)
        return gm.forward
    try:
        with events.span("trace_inference", "autograd", backend=backend):
            program = trace_inference(gm, example_inputs)
    except AutogradError as error:
        _report(backend, str(error), gm)
        return gm.forward
    events.emit("aot_inference_graph", "autograd", lambda: readable(program.graph), backend=backend)
    compiled = wrap(program, compile_program(program), boxed=boxed)
    if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs):
        return compiled
    return _only_without_grad(compiled, gm.forward)


def _only_without_grad(compiled: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """Traced under no_grad with inputs that require grad: where gradients are on, the graph itself must run."""
    enabled = torch.is_grad_enabled

    def call(*args: Any) -> Any:
        return forward(*args) if enabled() else compiled(*args)

    return call


def _report(backend: str, reason: str, gm: fx.GraphModule) -> None:
    events.emit(
        "fallback", "autograd", reason, backend=backend, reason=reason, scope="graph", nodes=len(gm.graph.nodes)
    )
