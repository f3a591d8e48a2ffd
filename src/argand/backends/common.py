"""What every backend that traces shares: when to run eagerly instead, events, the runtime wrapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from argand import events
from argand.autograd import needs_autograd, trace_inference, wrap
from argand.autograd.tracing.gradients import records_gradients
from argand.backends.compile_watchers import Compiler, watched
from argand.backends.programs.like_layers.whole_forward import traced_by_layers
from argand.config import config
from argand.errors import AutogradError, GpuError
from argand.graph import time_limit
from argand.graph.nodes.module_text import lazy_forward
from argand.graph.sizes.symbols import is_dynamic
from argand.runtime.tape.function import only_without_grad


def compile_inference(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler) -> Callable[..., Any]:
    """Trace `gm`, compile the program, wrap it; or `gm.forward` where that is not possible, or takes too long."""
    compiler = watched(compiler)
    try:
        with time_limit.preparing(len(gm.graph.nodes)):
            return _compiled(gm, example_inputs, compiler)
    except time_limit.OutOfTime as late:
        _report(compiler, time_limit.took_too_long("a graph", late), gm)
        return gm.forward
    except GpuError as error:
        return _without_kernels(compiler, error, gm)


def _without_kernels(compiler: Compiler, error: GpuError, gm: fx.GraphModule) -> Callable[..., Any]:
    """The graph as it is, at eager's own speed."""
    if config.verify_ir or config.repro_after:
        raise error
    _report(compiler, str(error), gm)
    forward: Callable[..., Any] = gm.forward
    return forward


def _compiled(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler) -> Callable[..., Any]:
    if gm.meta.get("unbacked"):
        _report(compiler, "sizes or numbers of the graph depend on the data of tensors", gm)
        return gm.forward
    if needs_autograd(gm, example_inputs) and any("writes_again" in node.meta for node in gm.graph.nodes):
        _report(compiler, "the backward of a checkpoint writes to buffers", gm)
        return gm.forward
    if not is_dynamic(gm):
        return compile_exact(gm, example_inputs, compiler)

    refused: list[GpuError] = []

    def exact(args: Sequence[Any]) -> Callable[..., Any]:
        if refused:  # what one size lacks, others will hardly have
            return gm.forward
        try:
            return compile_exact(gm, args, compiler)
        except GpuError as error:  # in the middle of a call
            refused.append(error)
            return _without_kernels(compiler, error, gm)

    from argand.backends.dynamic import compile_dynamic  # whoever has no such graph does not pay for it

    gradients = needs_autograd(gm, example_inputs)
    compiled = compile_dynamic(gm, example_inputs, compiler, exact, gradients=gradients)
    return compiled if gradients else _checked(compiled, gm, example_inputs)


def compile_exact(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler) -> Callable[..., Any]:
    """`compile_inference` for the sizes of `example_inputs` alone."""
    if needs_autograd(gm, example_inputs):
        from argand.backends.training import compile_training  # whoever has no gradients does not pay for it

        try:
            return compile_training(gm, example_inputs, compiler)
        except AutogradError as error:
            _report(compiler, str(error), gm)
            return gm.forward
    try:
        with events.span("trace_inference", "autograd", backend=compiler.backend):
            by_layers = traced_by_layers(gm, example_inputs, compiler.rewrite)
            program = by_layers or trace_inference(gm, example_inputs, bases=True)
    except AutogradError as error:
        _report(compiler, str(error), gm)
        return gm.forward
    program.model = events.bus.number("model")
    compiler.show(program)
    # Traced under no_grad with inputs that require grad: where gradients are on, the graph itself must run.
    otherwise = lazy_forward(gm)
    with_grad = otherwise if records_gradients(gm, example_inputs, enabled=True) else None
    run, untaped = compiler.compile_program(program), with_grad is None
    return wrap(program, run, boxed=compiler.boxed, with_grad=with_grad, otherwise=otherwise, untaped=untaped)


def _checked(compiled: Callable[..., Any], gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """`compiled`, or the graph itself in calls whose gradients are needed."""
    if not records_gradients(gm, example_inputs, enabled=True):
        return compiled
    return only_without_grad(compiled, lazy_forward(gm))


def _report(compiler: Compiler, reason: str, gm: fx.GraphModule) -> None:
    data = {"backend": compiler.backend, "reason": reason, "scope": "graph", "nodes": len(gm.graph.nodes)}
    events.emit("fallback", "autograd", reason, **data)
